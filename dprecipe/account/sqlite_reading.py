"""Reading of a SQLite file without a trace, by someone who may not write to it or to its folder.

| the log beside it | how it is read |
|---|---|
| holds something: a writer is at work, or was killed | through the log, whose index is read and never written |
| is empty or not there: all is in the file | from a copy in memory, made again if the file changed meanwhile |

In write-ahead mode even a reader who opens the file as usual creates a log and an index beside it, and may own them
afterwards: then the file's owner can't write any more. https://www.sqlite.org/wal.html#read_only_databases
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

TRIES = 20
"""The number of tries to read a file that is being written to."""


def open_to_read(path: Path, wait_seconds: float) -> sqlite3.Connection:
    """Opens a connection to the database as it is now.

    Guarantees: neither the file nor the files beside it change, and no new file appears there.

    Raises:
        sqlite3.Error, OSError: it can't be read; `SQLITE_BUSY` if it was written to during every try.
    """
    real = Path(os.path.realpath(path))  # as SQLite resolves it, which names the log after it
    for _ in range(TRIES):
        before = _look_at(real)
        try:
            connection = _open_log(real, wait_seconds) if before[0] else _copy_file(real)
        except sqlite3.OperationalError:
            if _look_at(real) == before:
                raise
            continue
        if before[0] or _look_at(real) == before:
            connection.execute("PRAGMA query_only = ON")  # a write to the copy would not reach the file
            return connection
        connection.close()
    error = sqlite3.OperationalError("the file was written to while it was read")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    raise error


def _look_at(file: Path) -> tuple[bool, tuple[int, ...]]:
    """Returns True if the log holds something, and values that differ between two states of the file."""
    log = file.with_name(f"{file.name}-wal")
    found = file.stat()
    state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return log.exists() and log.stat().st_size > 0, state


def _open_log(file: Path, wait_seconds: float) -> sqlite3.Connection:
    connection = _connect(f"{file.as_uri()}?mode=ro&readonly_shm=1", wait_seconds)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # opens the log
    except BaseException:
        connection.close()
        raise
    return connection


def _copy_file(file: Path) -> sqlite3.Connection:
    source, copy = _connect(f"{file.as_uri()}?mode=ro&immutable=1"), _connect(":memory:")
    try:
        source.backup(copy)
    except BaseException:
        copy.close()
        raise
    finally:
        source.close()
    return copy


def _connect(name: str, wait_seconds: float = 0) -> sqlite3.Connection:
    return sqlite3.connect(name, uri=True, isolation_level=None, timeout=wait_seconds, check_same_thread=False)
