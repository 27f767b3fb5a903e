"""The file of a ledger: one writer at a time, and whole lines."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from dprecipe.faults import RunFailed


def write_all(file: int, content: bytes) -> None:
    """Writes all of the content. Raises `OSError`."""
    while content:
        content = content[os.write(file, content) :]


def lock_file(file: int, path: Path) -> None:
    """Locks an open file; closes it if that fails.

    Raises:
        RunFailed: another process has locked it, or the file system has no locks.
    """
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RunFailed(f"{path}: another process is spending on this ledger", "wait until it ends") from None
        raise RunFailed(
            f"{path}: this file system can't lock the ledger: {error.strerror}; nothing more was spent",
            "put the run folder on a file system that has locks (a local disk), then continue with --resume",
        ) from None
