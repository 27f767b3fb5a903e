"""An account in a SQLite file: one file, one account, for the processes of one machine.

Write-ahead log, full synchronisation (a commit is on disk when it returns), `BEGIN IMMEDIATE` (one writer at a time,
from its first statement on). Only the file's owner has access. SQLite's locks don't work on file systems that several
machines share: those are refused.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sqlite3
import stat
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dprecipe import durable
from dprecipe.account.books import (
    MIGRATIONS,
    Books,
    Execute,
    check_version,
    create_account,
    find_only_name,
    migrate,
    refuse_older_tables,
)
from dprecipe.account.facts import AccountFacts
from dprecipe.account.faults import AccountInvalid, AccountUnavailable
from dprecipe.account.filesystems import find_network_type, is_mount
from dprecipe.account.sqlite_reading import open_to_read
from dprecipe.account.store import Sibling
from dprecipe.faults import Fault, UsageFault

APPLICATION = 0x64707261
"""SQLite's `application_id` of an account."""
WAIT_SECONDS = 60.0
"""The longest wait for a lock that another process holds."""
MAX_SIBLINGS = 64
MAX_NAME = 80
STEPS = 100_000
"""Steps of SQLite's virtual machine between checks for signals: about a millisecond."""
LOGS = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside a file, named after the path under which that was opened."""
HEADER = 100
MAGIC = b"SQLite format 3\0"
_OPEN: Counter[tuple[int, int]] = Counter()
"""Files that this process has open, by device and number. Such a file is never opened other than through SQLite:
closing it would drop SQLite's locks on it (https://www.sqlite.org/howtocorrupt.html, 2.2)."""


class SqliteStore:
    """`AccountStore` of the account in a file."""

    def __init__(self, path: Path, *, read_only: bool = False, wait_seconds: float = WAIT_SECONDS) -> None:
        self.path = path
        self.place = str(path)
        self._read_only = read_only
        self._wait = wait_seconds
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._file = (0, 0)
        self._of_parents: list[sqlite3.Connection] = []
        """Connections of the parent process, from before a fork: neither used nor closed here."""

    def create(self, facts: AccountFacts, secret: bytes) -> None:
        self._check_place()
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            if not self.path.parent.is_dir():
                raise UsageFault(
                    f"{self.place}: there is no such folder", f"make it: mkdir -p {shlex.quote(str(self.path.parent))}"
                )
            self._check_remains()
            with self._faults():
                os.close(durable.open_regular(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL))
                self._fill(draft, facts, secret)
                durable.sync_folder(draft)
                os.link(draft, self.path)  # unlike a rename, it replaces nothing
                durable.sync_folder(self.path.parent)
        except FileExistsError:
            raise UsageFault(
                f"{self.place} already exists, and nothing is overwritten",
                "an account is made once; give new people a new account in another file",
            ) from None
        finally:
            for suffix in ("", *LOGS):
                with suppress(OSError):
                    os.unlink(f"{draft}{suffix}")

    def _check_remains(self) -> None:
        """Refuses logs left by a file that was here before: SQLite would take them for those of the new one."""
        for suffix in LOGS:
            if os.path.lexists(f"{self.place}{suffix}") and not os.path.lexists(self.path):
                raise UsageFault(
                    f"{self.place}{suffix} is left over from an account that was here, and may hold runs' reservations",
                    "put that account back beside it; or give the new one another name",
                )

    def _fill(self, draft: Path, facts: AccountFacts, secret: bytes) -> None:
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            execute = _executor(connection)
            migrate(execute, 0)
            create_account(execute, facts, secret, self.place)
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()

    @contextmanager
    def transaction(self) -> Iterator[Books]:
        with self._within("BEGIN IMMEDIATE") as books:
            yield books

    @contextmanager
    def snapshot(self) -> Iterator[Books]:
        try:
            with self._within("BEGIN") as books:
                yield books
        finally:
            if self._read_only:
                self.close()  # the next connection reads the state of its own time

    @contextmanager
    def _within(self, begin: str) -> Iterator[Books]:
        with self._lock, self._faults():
            connection = self._connect()
            connection.execute(begin)
            try:
                execute = _executor(connection)
                yield Books(execute, self.place, find_only_name(execute, self.place))
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def list_siblings(self) -> Sequence[Sibling]:
        """Returns the accounts in the other files of the folder, and of the folder that a link leads to; files that
        can't be read are left out."""
        siblings: list[Sibling] = []
        for path in self._list_beside():
            if len(siblings) == MAX_SIBLINGS:
                break
            with suppress(Fault, OSError):
                if path.is_file() and (_OPEN[_identify(path)] or _is_account(path)):
                    siblings.append(_read_sibling(path))
        return siblings

    def _list_beside(self) -> list[Path]:
        """Returns the other files of its folders, each once, whatever links to it."""
        own = Path(os.path.realpath(self.path))
        folders = {self.path.parent.resolve(), own.parent}
        paths = [path for folder in sorted(folders) for path in sorted(folder.iterdir())[: 100 * MAX_SIBLINGS]]
        files = {os.path.realpath(path): path for path in reversed(paths)}
        files.pop(str(own), None)
        return sorted(files.values())

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
                _OPEN[self._file] -= 1
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and self._process == os.getpid():
            return self._connection
        if self._connection is not None:
            self._of_parents.append(self._connection)
            self._connection = None
        self._check_place()
        self._check_file()
        with self._refusing_others():
            connection = open_to_read(self.path, self._wait) if self._read_only else self._open_to_write()
        try:
            # Python sees signals between steps of SQLite, so a time limit (`release.untrusted`) applies there, too.
            connection.set_progress_handler(lambda: 0, STEPS)
            connection.execute("PRAGMA trusted_schema = OFF")
            self._check_application(connection)
            self._check_tables(connection)
            connection.execute("PRAGMA synchronous = FULL")
            self._bring_up_to_date(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._process = connection, os.getpid()
        self._file = _identify(self.path)
        _OPEN[self._file] += 1
        return connection

    def _open_to_write(self) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            timeout=self._wait,
            check_same_thread=False,
        )

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        execute = _executor(connection)
        if check_version(execute, self.place) == len(MIGRATIONS):
            return
        if self._read_only:
            raise refuse_older_tables(self.place)
        connection.execute("BEGIN IMMEDIATE")
        try:
            migrate(execute, check_version(execute, self.place))
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _check_place(self) -> None:
        kind = find_network_type(self.path)
        if kind is not None:
            raise AccountUnavailable(
                f"{self.place}: the account is on a network file system ({kind}), where locks of files don't hold",
                "put it on a local disk, or, for several machines, into PostgreSQL (docs/how-to/account.md)",
            )
        if is_mount(self.path):
            raise AccountUnavailable(
                f"{self.place}: the file is mounted by itself, and the log that SQLite keeps beside it is not",
                "mount the folder that it is in",
            )

    def _check_file(self) -> None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise UsageFault(
                f"{self.place}: there is no account",
                f"make one: dprecipe account create {shlex.quote(self.place)} --epsilon E --delta D --unit U",
            ) from None
        except OSError as error:
            raise AccountUnavailable(
                f"{self.place}: can't be read: {error.strerror}", "check its path and permissions"
            ) from None
        if not stat.S_ISREG(found.st_mode):
            raise self._no_account()
        if found.st_nlink > 1:
            raise AccountUnavailable(
                f"{self.place}: the file has {found.st_nlink} names (hard links), and SQLite's log goes by name",
                f"remove the other names, which are no backups: find them with find -samefile {self.place}",
            )

    def _check_application(self, connection: sqlite3.Connection) -> None:
        with self._refusing_others():
            ((number,),) = connection.execute("PRAGMA application_id").fetchall()
        if number != APPLICATION:
            raise self._no_account()

    @contextmanager
    def _refusing_others(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_NOTADB:
                raise
            raise self._no_account() from None

    def _check_tables(self, connection: sqlite3.Connection) -> None:
        """Refuses unexpected objects: a view or a trigger instead of a table could run for ever, or change what is
        read."""
        known = {text for statements in MIGRATIONS for text in statements if text.startswith("CREATE TABLE")}
        for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master"):
            of_sqlite = kind in ("table", "index") and str(name).startswith("sqlite_")
            if not of_sqlite and (kind != "table" or text not in known):
                raise AccountInvalid(self.place, [f"{kind} {str(name)[:MAX_NAME]} is of no account"])

    def _no_account(self) -> UsageFault:
        return UsageFault(f"{self.place} is no account of dprecipe", "name the file that dprecipe account create made")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._explain(error) from None
        except FileExistsError:
            raise
        except OSError as error:
            raise AccountUnavailable(
                f"{self.place}: can't be written: {error.strerror}", "check the folder, its permissions and its disk"
            ) from None

    def _explain(self, error: sqlite3.Error) -> AccountUnavailable:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        nothing = "; nothing was written"
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return AccountUnavailable(
                f"{self.place}: another process has held the account's lock for {self._wait:g} s{nothing}",
                f"find it with: fuser {self.place}; end it if it hangs (an unfinished step is undone), and try again",
            )
        if code == sqlite3.SQLITE_FULL:
            return AccountUnavailable(f"{self.place}: the disk is full{nothing}", "free some space, and try again")
        if code == sqlite3.SQLITE_CANTOPEN and self._read_only:
            return AccountUnavailable(
                f"{self.place}: the account can't be read",
                "ask its owner to make the file and those beside it (-wal, -shm) readable for you; if -shm is missing, "
                f"someone who may write repairs it: dprecipe account test {shlex.quote(self.place)}",
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return AccountUnavailable(
                f"{self.place}: the account can't be written{nothing}",
                "make the file and its folder writable for you (SQLite keeps two files beside it)",
            )
        if code == sqlite3.SQLITE_INTERRUPT:
            return AccountUnavailable(
                f"{self.place}: reading it takes longer than is allowed: the file is damaged{nothing}",
                "compare it with a backup; or allow more with --max-seconds",
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return AccountUnavailable(
                f"{self.place}: the file is damaged{nothing}",
                "restore the newest backup, check it with dprecipe account verify --head FILE, and see "
                "docs/how-to/account.md",
            )
        return AccountUnavailable(
            f"{self.place}: SQLite reports: {error}{nothing}",
            f"check it: dprecipe account test {shlex.quote(self.place)}; and try again",
        )


def _executor(connection: sqlite3.Connection) -> Execute:
    def execute(statement: str, parameters: Sequence[Any]) -> Sequence[Sequence[Any]]:
        return connection.execute(statement, parameters).fetchall()

    return execute


def is_sqlite(path: Path) -> bool:
    """Returns True if a file begins like a SQLite file; False if it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _identify(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _is_account(path: Path) -> bool:
    """Returns True if a file is a SQLite file with our `application_id`; for files that this process has not open."""
    file = durable.open_regular(path, os.O_RDONLY)
    try:
        header = os.read(file, HEADER)
    finally:
        os.close(file)
    return header[:16] == MAGIC and header[68:72] == APPLICATION.to_bytes(4, "big")


def _read_sibling(path: Path) -> Sibling:
    store = SqliteStore(path, read_only=True, wait_seconds=1)
    try:
        with store.snapshot() as books:
            return Sibling(f"{books.facts.name} ({path.name})", books.secret, books.totals.commitment)
    finally:
        store.close()
