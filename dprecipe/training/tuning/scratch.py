"""The folder in which a worker makes a run. It is deleted after the run; what a killed worker left is deleted by the
next one on its machine.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dprecipe.durable import FOLDER_MODE

PREFIX = "dprecipe-run-"
MAX_TRIES = 10
"""Largest number of times that a folder is made again because another worker took it for one that was left."""


@contextmanager
def make_scratch(parent: Path | None) -> Iterator[Path]:
    """Yields a folder that is gone after the block. `parent`: where it is made; None: in the machine's folder for
    temporary files.

    Guarantees: a folder of a process that was killed is deleted by the next call on its machine with this `parent`, by
    the same user. A folder in use is never deleted, where files have locks (not on Windows, where none is deleted).

    Raises:
        OSError: the disk refuses.
    """
    if parent is not None:
        parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
    place = parent or Path(tempfile.gettempdir())
    _delete_abandoned(place)
    path, lock = _make_locked(place)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _make_locked(parent: Path) -> tuple[Path, int | None]:
    """Returns a new folder, and a lock on it for as long as this process lives; another may delete it before it is
    locked."""
    for _ in range(MAX_TRIES if sys.platform != "win32" else 0):
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = _lock(path)
        if lock is not None:
            if path.exists():
                return path, lock
            os.close(lock)
        shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)), None  # where files have no locks, nothing is deleted


def _delete_abandoned(parent: Path) -> None:
    if sys.platform == "win32":
        return
    for path in parent.glob(f"{PREFIX}*"):
        if path.is_symlink() or not path.is_dir():
            continue
        lock = _lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _lock(path: Path) -> int | None:
    """Returns a lock of this user's folder; None where another process has it, or it is not there or another user's."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(file).st_uid == os.getuid():
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
    except OSError:
        pass
    os.close(file)
    return None
