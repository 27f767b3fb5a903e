"""Files that are still there after the power fails, that their owner alone can read, and that never make anyone wait.

Whatever lies where a private file should be (a pipe, a device, a folder) is an `OSError`, and nothing is waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

FILE_MODE, FOLDER_MODE = 0o600, 0o700
NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def sync_folder(path: Path) -> None:
    """Flush a file, or a folder's list of names, to disk. Raises `OSError`."""
    if os.name == "nt" and path.is_dir():  # folders can't be opened there
        return
    file = os.open(path, os.O_RDONLY | NO_WAITING)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def open_regular(path: Path, flags: int) -> int:
    """`os.open` of a regular file, made with mode 0600 where `flags` make one. Raises `OSError`: it is none."""
    file = os.open(path, flags | NO_WAITING, FILE_MODE)
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
    """The content of a regular file. Raises `OSError`."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()


@contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends well: old or new, never a half.

    Raises:
        OSError: the disk refuses; what was at `path` is still there.
    """
    fresh = path.with_suffix(".writing")
    with suppress(FileNotFoundError):
        os.unlink(fresh)  # of a run that was killed
    try:
        with open(open_regular(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise
    sync_folder(path.parent)


def replace_file(path: Path, content: bytes) -> None:
    """`replacing_file`, with this content."""
    with replacing_file(path) as file:
        file.write(content)


def make_folders(path: Path) -> None:
    """Make a folder and the ones above it that are missing; all their names are on disk. Raises `OSError`."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):  # of two processes, one makes it
            folder.mkdir()
        sync_folder(folder.parent)
