"""Files that survive a power failure, and that only their owner can read unless they are made for everybody.

Anything else instead of a private file (a pipe, a device, a folder) is an `OSError`; opening it never blocks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dprecipe.faults import RunFailed

FILE_MODE, FOLDER_MODE = 0o600, 0o700
PUBLIC_MODE = 0o666
"""Mode of a file for everybody: the process's mask takes from it."""
NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def sync_folder(path: Path) -> None:
    """Flushes a file, or a folder's list of names, to disk. Raises `OSError`."""
    if os.name == "nt" and path.is_dir():  # folders can't be opened there
        return
    file = os.open(path, os.O_RDONLY | NO_WAITING)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def open_regular(path: Path, flags: int, mode: int = FILE_MODE) -> int:
    """Calls `os.open` of a regular file; a new one gets `mode`. Raises `OSError`, also for anything but a regular
    file."""
    file = os.open(path, flags | NO_WAITING, mode)
    try:
        kind = os.fstat(file).st_mode
        if not stat.S_ISREG(kind):
            code = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
            raise OSError(code, "not a regular file", str(path))
    except BaseException:
        os.close(file)
        raise
    return file


def read_bytes(path: Path) -> bytes:
    """Returns the content of a regular file. Raises `OSError`."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()


@contextmanager
def writing(path: Path | str, remedy: str) -> Iterator[None]:
    """Reports an error of the operating system in the block as a file that can't be written.

    Raises:
        RunFailed: the block raised an `OSError`; `remedy` says what to do.
    """
    try:
        yield
    except OSError as error:
        raise RunFailed(f"{path}: can't be written: {error.strerror}", remedy) from None


@contextmanager
def replacing_file(path: Path, mode: int = FILE_MODE) -> Iterator[BinaryIO]:
    """Yields a file to write, which replaces `path` when the block succeeds: `path` has the old content or all of the
    new.

    Raises:
        OSError: writing fails; `path` is unchanged.
    """
    fresh = path.with_name(f"{path.name}.writing")
    with suppress(FileNotFoundError):
        os.unlink(fresh)  # of a run that was killed
    try:
        with open(open_regular(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise
    sync_folder(path.parent)


def replace_file(path: Path, content: bytes, mode: int = FILE_MODE) -> None:
    """Writes `content` by `replacing_file`."""
    with replacing_file(path, mode) as file:
        file.write(content)


def make_folders(path: Path) -> None:
    """Makes a folder and its missing parents, and flush their names to disk. Raises `OSError`."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process made it
            folder.mkdir()
        sync_folder(folder.parent)
