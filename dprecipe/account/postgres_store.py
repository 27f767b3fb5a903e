"""Accounts in a PostgreSQL database: many accounts, for the machines that reach the server.

A transaction locks the account's row (`SELECT … FOR UPDATE`), so writers of one account take turns, and writers of
different accounts don't wait for each other. A commit is on the server's disk when it returns. The
password comes from libpq's own places: `$PGPASSWORD`, `~/.pgpass`, or a service file.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dprecipe.account.books import (
    MIGRATIONS,
    Books,
    Execute,
    check_version,
    create_account,
    find_only_name,
    list_names,
    migrate,
    refuse_older_tables,
)
from dprecipe.account.facts import AccountFacts
from dprecipe.account.faults import AccountUnavailable
from dprecipe.account.store import Sibling
from dprecipe.faults import Fault, UsageFault
from dprecipe.libraries import importing_libraries
from dprecipe.screen import make_printable

WAIT_SECONDS = 60
"""The longest wait for a lock that another client holds, and of the server for a silent client."""
CONNECT_SECONDS = 15
MAX_SIBLINGS = 64
SCHEMA_LOCK = 0x64707261
"""The advisory lock held while the tables are made or changed."""
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
SETTINGS = {
    "lock_timeout": f"{WAIT_SECONDS}s",
    "statement_timeout": f"{2 * WAIT_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{WAIT_SECONDS}s",
    "synchronous_commit": "on",
}
"""Settings made in each transaction: a pooler may give each one another server process."""
SET_LOCAL = "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in SETTINGS.items())
LOCK_CODES = ("55P03", "57014", "40P01", "40001")
"""Error codes: a lock not obtained in time, a cancelled statement, a deadlock, a conflict of transactions."""


class PostgresStore:
    """`AccountStore` of an account in a database. `name`: the account's; None where the database has only one."""

    def __init__(self, url: str, name: str | None, *, read_only: bool = False) -> None:
        self.url = url
        self.name = name
        self.place = url if name is None else f"{url}#{name}"
        self._read_only = read_only
        self._lock = threading.RLock()
        self._connection: Any = None
        self._process = 0
        self._of_parents: list[Any] = []
        """Connections of the parent process, from before a fork: neither used nor closed here."""

    def create(self, facts: AccountFacts, secret: bytes) -> None:
        with self._lock, self._faults():
            session = self._begin(WRITE)
            try:
                # Two clients that find no tables would both make them.
                session.execute("SELECT pg_advisory_xact_lock(?)", (SCHEMA_LOCK,))
                version = check_version(session.execute, self.place) if _has_tables(session.execute) else 0
                migrate(session.execute, version)
                create_account(session.execute, facts, secret, self.url)
                session.commit()
            except BaseException:
                self._roll_back()
                raise
        self.name = facts.name
        self.place = f"{self.url}#{facts.name}"

    @contextmanager
    def transaction(self) -> Iterator[Books]:
        with self._within(WRITE, " FOR UPDATE") as books:
            yield books

    @contextmanager
    def snapshot(self) -> Iterator[Books]:
        with self._within(READ, "") as books:
            yield books

    def list_siblings(self) -> Sequence[Sibling]:
        """Returns the other accounts of the database; those whose rows can't be read are left out."""
        siblings = []
        with self._lock, self._faults():
            execute = self._begin(READ).execute
            try:
                names = [name for name in list_names(execute) if name != self.name]
                for name in names[:MAX_SIBLINGS]:
                    with suppress(Fault):
                        books = Books(execute, self.url, name)
                        siblings.append(Sibling(name, books.secret, books.totals.commitment))
            finally:
                self._roll_back()
        return siblings

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    @contextmanager
    def _within(self, begin: str, lock: str) -> Iterator[Books]:
        with self._lock, self._faults():
            try:
                session, books = self._open_books(begin, lock)
                yield books
                session.commit()
            except BaseException:
                self._roll_back()
                raise

    def _open_books(self, begin: str, lock: str) -> tuple[_Session, Books]:
        """Begins a transaction and reads the account. If the server has closed the connection meanwhile, nothing was
        begun, and a new connection is made."""
        psycopg = _import_client()
        was_open = self._is_connected()
        try:
            return self._read_account(self._begin(begin), lock)
        except psycopg.OperationalError:
            if not was_open or self._is_connected():
                raise
            return self._read_account(self._begin(begin), lock)

    def _read_account(self, session: _Session, lock: str) -> tuple[_Session, Books]:
        if self.name is None:
            self.name = find_only_name(session.execute, self.url)
        return session, Books(session.execute, self.place, self.name, lock=lock)

    def _begin(self, begin: str) -> _Session:
        """Returns a transaction; the statement that begins it is sent with its first query."""
        session = _Session(self._connect())
        session.execute(begin)
        session.execute(SET_LOCAL)
        return session

    def _is_connected(self) -> bool:
        return self._connection is not None and self._process == os.getpid() and not self._connection.closed

    def _connect(self) -> Any:
        if self._is_connected():
            return self._connection
        if self._connection is not None and self._process != os.getpid():
            self._of_parents.append(self._connection)
        psycopg = _import_client()
        connection = psycopg.connect(
            self.url,
            autocommit=True,  # transactions are begun and ended here, by name
            connect_timeout=CONNECT_SECONDS,
            application_name="dprecipe account",
            client_encoding="UTF8",
            prepare_threshold=None,  # a pooler may give each transaction another server process
        )
        self._connection, self._process = connection, os.getpid()
        try:
            self._check_tables(connection)
        except BaseException:
            self.close()
            raise
        return connection

    def _check_tables(self, connection: Any) -> None:
        """Brings older tables up to date; refuses newer ones."""
        execute = _Session(connection).execute
        if not _has_tables(execute) or check_version(execute, self.place) == len(MIGRATIONS):
            return
        if self._read_only:
            raise refuse_older_tables(self.place)
        session = _Session(connection)
        session.execute(WRITE)
        session.execute(SET_LOCAL)
        session.execute("SELECT pg_advisory_xact_lock(?)", (SCHEMA_LOCK,))
        migrate(session.execute, check_version(session.execute, self.place))
        session.commit()

    def _roll_back(self) -> None:
        psycopg = _import_client()
        with suppress(psycopg.Error, AttributeError):
            self._connection.execute("ROLLBACK")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        psycopg = _import_client()
        try:
            yield
        except psycopg.Error as error:
            raise self._explain(error, psycopg.OperationalError) from None

    def _explain(self, error: Any, operational: type[Exception]) -> AccountUnavailable | UsageFault:
        code, nothing = error.sqlstate or "", "; nothing was written"
        test = f"dprecipe account test {shlex.quote(self.place)}"
        said = make_printable(str(error.diag.message_primary or str(error).splitlines()[0] if str(error) else ""))
        if code in LOCK_CODES:
            return AccountUnavailable(
                f"{self.place}: another client has held the account's lock for {WAIT_SECONDS} s{nothing}",
                "find it: SELECT pid, state, query FROM pg_stat_activity WHERE application_name = 'dprecipe account'; "
                "end it if it hangs: SELECT pg_terminate_backend(pid); and try again",
            )
        if code == "42P01":
            return UsageFault(f"{self.place}: the database has no accounts", "dprecipe account create makes one")
        if code.startswith("53"):
            return AccountUnavailable(
                f"{self.place}: the server lacks resources: {said}{nothing}",
                "free disk space, memory or connections there, and try again",
            )
        if code in ("42501", "25006"):
            return AccountUnavailable(
                f"{self.place}: you may not write the account: {said}{nothing}",
                "ask for SELECT, INSERT and UPDATE on the tables dprecipe_*, on the primary server",
            )
        if isinstance(error, operational):
            return AccountUnavailable(
                f"{self.place}: the database can't be reached, or the connection was lost: {said}; what was not yet "
                "confirmed was written entirely or not at all, and asking again is safe",
                f"{_find_remedy(said)}; then: {test}",
            )
        return AccountUnavailable(f"{self.place}: PostgreSQL reports: {said}{nothing}", f"test the database: {test}")


REMEDIES = (
    (("password",), "put the user's correct password into ~/.pgpass (mode 0600) or $PGPASSWORD"),
    (("does not exist",), "make what is missing (createdb, createuser), or correct the address"),
    (("pg_hba.conf",), "ask the server's administrator to let you in (pg_hba.conf)"),
    (("SSL", "certificate"), "set up TLS on the server, or write the sslmode that it has (on one machine: disable)"),
    (("resolve", "translate host"), "correct the host in the address"),
    (("service",), "describe the service in ~/.pg_service.conf, or write the address in full"),
)
"""Remedies by words in libpq's message: it has no codes for failures before there is a connection."""


def _find_remedy(said: str) -> str:
    known = (remedy for words, remedy in REMEDIES if any(word in said for word in words))
    return next(known, "check that the server runs, that host and port are right, and that no firewall is in between")


def _has_tables(execute: Execute) -> bool:
    # Reads the catalogue's rows, which a transaction sees as they are: its cache may be older.
    query = "SELECT FROM pg_catalog.pg_tables WHERE tablename = ? AND schemaname = ANY (current_schemas(false))"
    return bool(execute(f"SELECT EXISTS ({query})", ("dprecipe_schema",))[0][0])


def _import_client() -> Any:
    with importing_libraries("an account at postgresql://…"):
        import psycopg

    return psycopg


class _Session:
    """The statements of one transaction. Statements without results wait for the next one with a result, or for the
    end, so that all of them take one round trip. Anyone who waits for this transaction's lock waits for each of its
    round trips."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._waiting: list[tuple[str, Sequence[Any]]] = []

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Sequence[Sequence[Any]]:
        """Returns the rows of a SELECT. `SET_LOCAL` and all other statements return none and only wait to be sent."""
        self._waiting.append((statement.replace("?", "%s"), parameters))
        return () if statement == SET_LOCAL or not statement.startswith("SELECT") else self._send()

    def commit(self) -> None:
        self._waiting.append(("COMMIT", ()))
        self._send()

    def _send(self) -> Sequence[Sequence[Any]]:
        """Sends the waiting statements; returns the rows of the last."""
        psycopg = _import_client()
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1 or not psycopg.Pipeline.is_supported():
            cursors = [self._connection.execute(*each) for each in waiting]
        else:
            with self._connection.pipeline():
                cursors = [self._connection.execute(*each) for each in waiting]
        rows: Sequence[Sequence[Any]] = cursors[-1].fetchall() if cursors[-1].description else ()
        return rows
