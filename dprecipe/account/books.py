"""The tables of accounts, and one account within a transaction: the same SQL for SQLite and PostgreSQL.

| table | a row is |
|---|---|
| `dprecipe_schema` | the version of these tables |
| `dprecipe_accounts` | an account: its facts, its secret key, and the totals of its entries |
| `dprecipe_entries` | an entry: its number and its line |
| `dprecipe_runs` | what a run counts after its last entry |

Totals and runs follow from the entries. They are stored so that a new entry costs the same however many came
before; `dprecipe account verify` computes them again. Every value is a parameter; `?` stands for one.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from dprecipe.account.canonical import digest_of, tell_time, to_line
from dprecipe.account.entries import AccountEntry, Act, ReserveAct, SettleAct, VoidAct
from dprecipe.account.facts import AccountFacts, read_facts
from dprecipe.account.faults import AccountInvalid, AccountUnavailable
from dprecipe.account.state import KnownState, RunState, Totals, follow, read_run, read_totals
from dprecipe.faults import UsageFault
from dprecipe.screen import make_printable

Execute = Callable[[str, Sequence[Any]], Sequence[Sequence[Any]]]
"""A function that runs a statement with its parameters and returns its rows."""

MAX_SHOWN = 20
PAGE = 500
"""Rows read at once."""
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE dprecipe_schema (version BIGINT NOT NULL)",
        "INSERT INTO dprecipe_schema (version) VALUES (0)",
        "CREATE TABLE dprecipe_accounts "
        "(name TEXT PRIMARY KEY, facts TEXT NOT NULL, secret TEXT NOT NULL, totals TEXT NOT NULL)",
        "CREATE TABLE dprecipe_entries "
        "(account TEXT NOT NULL, seq BIGINT NOT NULL, line TEXT NOT NULL, PRIMARY KEY (account, seq))",
        "CREATE TABLE dprecipe_runs "
        "(account TEXT NOT NULL, run TEXT NOT NULL, state TEXT NOT NULL, PRIMARY KEY (account, run))",
    ),
)
"""Statements that take the tables from each version to the next; version 0 is a database without them."""


class Books:
    """One account, for as long as a transaction lasts.

    Call `append` only in a transaction that has locked the account.
    """

    def __init__(self, execute: Execute, place: str, name: str, *, lock: str = "") -> None:
        """Reads the account's row. `lock`: the clause that makes SELECT lock it.

        Raises:
            UsageFault: there is no such account.
            AccountInvalid: the account's rows contradict each other.
        """
        self._execute = execute
        self._place = place
        self._runs: dict[str, RunState | None] = {}
        """Runs that this transaction has read or written."""
        columns = "facts, secret, totals"
        rows = execute(f"SELECT {columns} FROM dprecipe_accounts WHERE name = ?{lock}", (name,))
        if not rows:
            raise UsageFault(
                f"{place}: there is no account {make_printable(name)}", "dprecipe account create makes one"
            )
        facts, secret, totals = rows[0]
        with self._checking("the account's row"):
            self.facts: AccountFacts = _parse_facts(facts)
            self.secret = bytes.fromhex(secret)
            self.totals: Totals = read_totals(json.loads(totals))
            if self.facts.name != name:
                raise ValueError("the name differs from that in the facts")
            self._check_ends()

    def find_run(self, run: str) -> RunState | None:
        """Returns the state of a run, or None if the run is unknown. Each run is read once in a transaction."""
        if run not in self._runs:
            rows = self._execute("SELECT state FROM dprecipe_runs WHERE account = ? AND run = ?", (self.facts.id, run))
            with self._checking("a run's row"):
                state = read_run(json.loads(rows[0][0]), len(self.facts.orders)) if rows else None
                if state is not None and state.run != run:
                    raise ValueError("a run has the row of another")
                self._runs[run] = state
        return self._runs[run]

    def get_run(self, run: str) -> RunState:
        """Returns the state of a run that must exist. Raises `AccountInvalid` if its row is missing."""
        with self._checking("a run's row"):
            state = self.find_run(run)
            if state is None:
                raise ValueError("it is missing")
            return state

    def append(self, act: Act) -> AccountEntry:
        """Writes an entry and all that follows from it.

        Raises:
            ValueError: no correct writer makes such an entry (`state.follow`); nothing was written.
        """
        time = self.totals.time if isinstance(act, SettleAct | VoidAct) else tell_time()
        entry = AccountEntry(self.totals.count, self.totals.head, time, act)
        line = entry.to_line()
        known = follow(self._find_known(act), entry, line)
        account = self.facts.id
        self._execute(
            "INSERT INTO dprecipe_entries (account, seq, line) VALUES (?, ?, ?)", (account, entry.seq, line.decode())
        )
        if known.run is not None:
            self._execute(
                "INSERT INTO dprecipe_runs (account, run, state) VALUES (?, ?, ?) "
                "ON CONFLICT (account, run) DO UPDATE SET state = excluded.state",
                (account, known.run.run, to_line(known.run.to_json()).decode()),
            )
            self._runs[known.run.run] = known.run
        self._execute(
            "UPDATE dprecipe_accounts SET totals = ? WHERE name = ?",
            (to_line(known.totals.to_json()).decode(), self.facts.name),
        )
        self.totals = known.totals
        return entry

    def _find_known(self, act: Act) -> KnownState:
        """Returns the current state of what an act of this account is about."""
        run = self.find_run(act.run) if isinstance(act, ReserveAct | SettleAct | VoidAct) else None
        return KnownState(self.totals, run)

    def write_draft(self) -> None:
        """Writes what an entry would, for a transaction that is rolled back: if kept, the account would be invalid."""
        values = (self.facts.id, self.totals.count, "")
        self._execute("INSERT INTO dprecipe_entries (account, seq, line) VALUES (?, ?, ?)", values)
        self._execute("INSERT INTO dprecipe_runs (account, run, state) VALUES (?, ?, ?)", (self.facts.id, "", ""))
        self._execute("UPDATE dprecipe_accounts SET totals = totals WHERE name = ?", (self.facts.name,))

    def read_lines(self, first: int = 0) -> Iterator[tuple[int, str]]:
        """Yields (number, line) of all entries from `first` on."""
        while True:
            rows = self._execute(
                f"SELECT seq, line FROM dprecipe_entries WHERE account = ? AND seq >= ? ORDER BY seq LIMIT {PAGE}",
                (self.facts.id, first),
            )
            yield from ((int(seq), line) for seq, line in rows)
            if len(rows) < PAGE:
                return
            first = int(rows[-1][0]) + 1

    def read_line(self, seq: int) -> str | None:
        """Returns the line of one entry; None if it is missing."""
        rows = self._execute("SELECT line FROM dprecipe_entries WHERE account = ? AND seq = ?", (self.facts.id, seq))
        return rows[0][0] if rows else None

    def read_runs(self) -> Iterator[RunState]:
        """Yields all runs, in the order of their names."""
        after = ""
        while True:
            rows = self._execute(
                f"SELECT run, state FROM dprecipe_runs WHERE account = ? AND run > ? ORDER BY run LIMIT {PAGE}",
                (self.facts.id, after),
            )
            with self._checking("a run's row"):
                yield from (read_run(json.loads(state), len(self.facts.orders)) for _, state in rows)
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _check_ends(self) -> None:
        """Checks that the facts match the first entry and the totals the last: what can be seen without reading all
        entries."""
        count = self.totals.count
        rows = self._execute(
            "SELECT seq, line FROM dprecipe_entries WHERE account = ? AND seq IN (0, ?, ?)",
            (self.facts.id, max(count - 1, 0), count),
        )
        lines = {int(seq): line for seq, line in rows}
        first, last = lines.get(0), lines.get(count - 1)
        if count == 0:
            if lines or self.totals.head != self.facts.digest:
                raise ValueError("the totals are not those of the entries")
            return
        if first is None or json.loads(first).get("prev") != self.facts.digest:
            raise ValueError("the facts are not those that the entries began with")
        if last is None or digest_of(last.encode()) != self.totals.head or count in lines:
            raise ValueError("the totals are not those of the entries")

    def _checking(self, subject: str) -> _Checking:
        return _Checking(self._place, subject)


@lru_cache(maxsize=64)
def _parse_facts(text: str) -> AccountFacts:
    """Parses the facts in a row, which are the same in every transaction."""
    return read_facts(json.loads(text))


class _Checking:
    """A context manager that turns errors in stored text into `AccountInvalid`."""

    def __init__(self, place: str, subject: str) -> None:
        self._place, self._subject = place, subject

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | TypeError | ArithmeticError | AttributeError | RecursionError):
            raise AccountInvalid(self._place, [f"{self._subject}: {error}"]) from None


def create_account(execute: Execute, facts: AccountFacts, secret: bytes, place: str) -> None:
    """Inserts a new account into existing tables. Raises `UsageFault` if there is one of this name."""
    if execute("SELECT name FROM dprecipe_accounts WHERE name = ?", (facts.name,)):
        raise UsageFault(
            f"{place}: there is an account {facts.name} already",
            "an account is made once, and has no refresh: give new people a new account of another name",
        )
    totals = to_line(Totals.start(facts).to_json()).decode()
    execute(
        "INSERT INTO dprecipe_accounts (name, facts, secret, totals) VALUES (?, ?, ?, ?)",
        (facts.name, to_line(facts.to_json()).decode(), secret.hex(), totals),
    )


def migrate(execute: Execute, version: int) -> None:
    """Takes the tables from `version` to this program's. Call it in a transaction that has locked them."""
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            execute(statement, ())
    execute("UPDATE dprecipe_schema SET version = ?", (len(MIGRATIONS),))


def check_version(execute: Execute, place: str) -> int:
    """Returns the version of the tables.

    Raises:
        AccountUnavailable: a newer program made them.
    """
    rows = execute("SELECT version FROM dprecipe_schema", ())
    version = int(rows[0][0]) if rows else 0
    if version > len(MIGRATIONS):
        raise AccountUnavailable(
            f"{place}: the account is of version {version}, and this program knows versions up to {len(MIGRATIONS)}",
            "install the newer dprecipe that wrote it; an older one must not write to it",
        )
    return version


def refuse_older_tables(place: str) -> AccountUnavailable:
    """Returns the fault for a reader of older tables, who may not change them."""
    return AccountUnavailable(
        f"{place}: the account is of an older version, and was opened only to be read",
        f"bring it up to date: dprecipe account test {shlex.quote(place)}",
    )


def list_names(execute: Execute) -> list[str]:
    """Returns the names of the accounts, in order."""
    return sorted(row[0] for row in execute("SELECT name FROM dprecipe_accounts", ()))


def find_only_name(execute: Execute, place: str) -> str:
    """Returns the name of the only account.

    Raises:
        UsageFault: there is none, or several.
    """
    names = list_names(execute)
    if len(names) == 1:
        return names[0]
    shown = ", ".join(map(make_printable, names[:MAX_SHOWN]))
    raise UsageFault(
        f"{place}: the database has {f'{len(names)} accounts: {shown}' if names else 'no account'}",
        f"name one: {place}#NAME" if names else "make one: dprecipe account create",
    )
