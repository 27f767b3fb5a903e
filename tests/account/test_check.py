"""Forged accounts: what is caught by the entries alone, what by a head kept elsewhere, and what is not."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dprecipe.account.account import DataAccount
from dprecipe.account.canonical import digest_of, to_line
from dprecipe.account.check import Recount
from dprecipe.account.entries import AccountEntry, BindAct, ReserveAct, RunClaim, VoidAct
from dprecipe.account.facts import AccountFacts
from dprecipe.account.faults import AccountInvalid
from dprecipe.account.head import Head, make_head, read_head
from dprecipe.account.opening import open_account
from dprecipe.account.standing import find_cost
from dprecipe.account.sums import Sums
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.filters.filter import admits
from dprecipe.privacy.noisy_sums import Gaussian

CHARGES = (Charge(Gaussian(20.0), 4),)
LESS = (Charge(Gaussian(20.0), 1),)
Edit = Callable[[sqlite3.Connection], Any]


@pytest.fixture
def used(account: DataAccount) -> DataAccount:
    """Eight entries: three settled runs and an open one."""
    for name in ("a", "b", "c"):
        account.reserve(name, 1, CHARGES, name)
        account.settle(name, 1, LESS, final=True)
    account.reserve("d", 1, CHARGES, "d")
    return account


def edit_rows(account: DataAccount, edit: Edit) -> DataAccount:
    """The account once somebody with SQLite's shell has edited its file."""
    path = account.place
    account.close()
    with closing(sqlite3.connect(path)) as connection:
        edit(connection)
        connection.commit()
    return account


def run_sql(statement: str, *parameters: Any) -> Edit:
    return lambda connection: connection.execute(statement, parameters)


def edit_line(seq: int, **changes: Any) -> Edit:
    def edit(connection: sqlite3.Connection) -> None:
        ((line,),) = connection.execute("SELECT line FROM dprecipe_entries WHERE seq = ?", (seq,)).fetchall()
        changed = to_line({**json.loads(line), **changes}).decode()
        connection.execute("UPDATE dprecipe_entries SET line = ? WHERE seq = ?", (changed, seq))

    return edit


def swap(connection: sqlite3.Connection) -> None:
    for old, new in ((1, 100), (3, 1), (100, 3)):
        connection.execute("UPDATE dprecipe_entries SET seq = ? WHERE seq = ?", (new, old))


def edit_row(table: str, column: str, where: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Edit:
    def edit(connection: sqlite3.Connection) -> None:
        ((text,),) = connection.execute(f"SELECT {column} FROM {table} {where}").fetchall()
        connection.execute(f"UPDATE {table} SET {column} = ? {where}", (to_line(change(json.loads(text))).decode(),))

    return edit


ZERO = Sums.zero(9).to_json()
CHEAP = Spent((0.0,) * 9).to_json()
FORGERIES: dict[str, tuple[Edit, str]] = {
    "an entry deleted in the middle": (run_sql("DELETE FROM dprecipe_entries WHERE seq = 3"), "entry 3 is missing"),
    "the last entry deleted": (
        run_sql("DELETE FROM dprecipe_entries WHERE seq = 7"),
        "totals are not those of",
    ),
    "the first entry deleted": (run_sql("DELETE FROM dprecipe_entries WHERE seq = 0"), "facts are not those"),
    "entries renumbered": (
        run_sql("UPDATE dprecipe_entries SET seq = seq - 1 WHERE seq > 3 OR seq = 3 AND 0"),
        "UNIQUE|totals are not those of the entries",
    ),
    "two entries swapped": (swap, "entry 1: the chain is broken"),
    "a name edited": (edit_line(3, what="z"), "entry 4: the chain is broken"),
    "a cost edited": (edit_line(3, cost=CHEAP), "entry 3: the cost is less than that of the events"),
    "events edited": (edit_line(3, events=[Charge(Gaussian(20.0), 2).to_json()]), "entry 4: the chain is broken"),
    "the last entry edited": (edit_line(7, what="z"), "totals are not those of the entries"),
    "an entry that is no JSON": (run_sql("UPDATE dprecipe_entries SET line = 'x' WHERE seq = 2"), "entry 2: "),
    "an entry added": (
        run_sql("INSERT INTO dprecipe_entries SELECT account, 8, line FROM dprecipe_entries WHERE seq = 7"),
        "totals are not those of the entries",
    ),
    "sums edited": (
        edit_row("dprecipe_accounts", "totals", "", lambda totals: {**totals, "sums": ZERO}),
        "totals are not those of the entries",
    ),
    "the count edited": (
        edit_row("dprecipe_accounts", "totals", "", lambda totals: {**totals, "count": 5}),
        "totals are not those of the entries",
    ),
    "a higher cap": (
        edit_row("dprecipe_accounts", "facts", "", lambda facts: {**facts, "epsilon": 20.0}),
        "orders are not those of the cap",
    ),
    "another unit": (
        edit_row("dprecipe_accounts", "facts", "", lambda facts: {**facts, "unit": "record"}),
        "facts are not those that the entries began with",
    ),
    "no largest ε of a run": (
        edit_row("dprecipe_accounts", "facts", "", lambda facts: {**facts, "max_epsilon_per_run": 2.0}),
        "facts are not those that the entries began with",
    ),
    "what a run counts edited": (
        edit_row("dprecipe_runs", "state", "WHERE run = 'a'", lambda run: {**run, "counted": CHEAP}),
        "the row of run a is not what its entries come to",
    ),
    "a run's row deleted": (run_sql("DELETE FROM dprecipe_runs WHERE run = 'd'"), "run d has entries and no row"),
    "a run's row added": (
        run_sql(
            'INSERT INTO dprecipe_runs SELECT account, \'e\', replace(state, \'"run":"d"\', \'"run":"e"\') '
            "FROM dprecipe_runs WHERE run = 'd'"
        ),
        "run e has a row and no entry",
    ),
    "a run's row swapped": (
        run_sql("UPDATE dprecipe_runs SET state = (SELECT state FROM dprecipe_runs WHERE run = 'a') WHERE run = 'd'"),
        "run d|run a",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_account_does_not_verify(used: DataAccount, name: str) -> None:
    used.verify()
    edit, message = FORGERIES[name]
    try:
        edit_rows(used, edit)
    except sqlite3.IntegrityError:
        return  # the table refuses it by itself
    with pytest.raises(AccountInvalid) as caught:
        used.verify()
    assert any(part in str(caught.value) for part in message.split("|")), str(caught.value)


AT_ONCE = [name for name, (_, message) in FORGERIES.items() if "facts" in message or "orders" in message]


@pytest.mark.parametrize("name", [*AT_ONCE, "the last entry deleted", "the last entry edited", "an entry added"])
def test_what_the_ends_of_the_chain_show_stops_the_next_run(used: DataAccount, name: str) -> None:
    edit_rows(used, FORGERIES[name][0])
    with pytest.raises(AccountInvalid):
        used.reserve("e", 1, CHARGES, "e")


def rewrite(account: DataAccount, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Write the whole chain anew, with totals and runs that fit: what a forger with the database can do."""
    with account.snapshot() as books:
        facts, lines = books.facts, [json.loads(line) for _, line in books.read_lines()]
    count, written = Recount(facts), []
    for seq, content in enumerate(change(lines)):
        line = to_line({**content, "seq": seq, "prev": count.totals.head})
        count.take(line)
        written.append(line.decode())

    def edit(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM dprecipe_entries")
        connection.execute("DELETE FROM dprecipe_runs")
        for seq, line in enumerate(written):
            connection.execute("INSERT INTO dprecipe_entries VALUES (?, ?, ?)", (facts.id, seq, line))
        for run in count.runs.values():
            state = to_line(run.to_json()).decode()
            connection.execute("INSERT INTO dprecipe_runs VALUES (?, ?, ?)", (facts.id, run.run, state))
        connection.execute("UPDATE dprecipe_accounts SET totals = ?", (to_line(count.totals.to_json()).decode(),))

    edit_rows(account, edit)


def test_a_chain_written_anew_is_caught_by_a_head_alone(used: DataAccount) -> None:
    state = used.state()
    head = read_head(make_head(state.facts, state.totals).to_json())
    rewrite(used, lambda lines: [line for line in lines if line.get("run") != "b"])
    assert used.verify().totals.runs == 3  # not caught: run b is gone
    with pytest.raises(AccountInvalid, match=r"2 entries that were there on .* are missing: it was rolled back"):
        used.verify(head)
    for name in ("e", "f", "g"):
        used.reserve(name, 1, LESS, name)
    with pytest.raises(AccountInvalid, match=r"entry 7 is not the one of .*: the entries were rewritten"):
        used.verify(head)


def test_a_restored_backup_is_caught_by_a_head_alone(used: DataAccount, tmp_path: Path) -> None:
    used.close()
    shutil.copy(used.place, tmp_path / "backup")
    used.settle("d", 1, CHARGES, final=True)
    used.reserve("e", 1, CHARGES, "e")
    state = used.state()
    head = make_head(state.facts, state.totals)
    used.verify(head)
    used.close()
    shutil.copy(tmp_path / "backup", used.place)
    restored = open_account(used.place)
    restored.verify()  # not caught
    with pytest.raises(AccountInvalid, match="2 entries that were there"):
        restored.verify(head)


def test_a_head_of_another_account_and_one_of_before_the_first_entry(
    used: DataAccount, make_account: Callable[..., DataAccount]
) -> None:
    other = make_account("other.db", "other")
    state = other.state()
    with pytest.raises(AccountInvalid, match="the head is of another account"):
        used.verify(make_head(state.facts, state.totals))
    empty = make_account("empty.db", "empty", data=None).state()
    head = make_head(empty.facts, empty.totals)
    assert head.count == 0
    assert head.head == empty.facts.digest
    used.verify(Head("admissions", used.facts.id, 0, used.facts.digest, used.facts.created))


@pytest.mark.parametrize("bad", [None, [], {}, {"schema": "dprecipe.account-head/v1"}])
def test_heads_of_strangers(bad: object) -> None:
    with pytest.raises(ValueError, match=r"not an object|there is no field"):
        read_head(bad)


def test_more_than_the_cap_holds_is_seen_at_any_moment(facts: AccountFacts) -> None:
    """A chain of fitting digests that reserved more than the cap for a while, and gave it back."""
    charges = (Charge(Gaussian(2.8), 1),)
    cost = find_cost(charges, facts.neighbouring, facts.cap)
    assert admits(cost, facts.cap)
    assert not admits(cost + cost, facts.cap)
    count = Recount(facts)
    for act in (
        BindAct("0" * 64),
        ReserveAct("a", 1, "", "", charges, cost, None),
        ReserveAct("b", 1, "", "", charges, cost, None),
    ):
        count.take(AccountEntry(count.totals.count, count.totals.head, facts.created, act).to_line())
    back = AccountEntry(3, count.totals.head, facts.created, VoidAct("b", 1)).to_line()
    with pytest.raises(ValueError, match="more is reserved than the cap holds"):
        count.take(back)


def test_a_claim_above_the_largest_of_a_run_is_seen(make_account: Callable[..., DataAccount]) -> None:
    account = make_account(max_epsilon_per_run=1.0)
    account.reserve("a", 1, CHARGES, "a", claim=RunClaim(0.9, 1e-6))
    with account.snapshot() as books:
        lines = [json.loads(line) for _, line in books.read_lines()]
    count = Recount(account.facts)
    count.take(to_line(lines[0]))
    with pytest.raises(ValueError, match="claims more than the account allows"):
        count.take(to_line({**lines[1], "claim": {"epsilon": 1.5, "delta": 1e-6}}))
    count.take(to_line({**lines[1], "claim": None}))  # then it is what the filter says of it alone
    loud = ReserveAct("b", 1, "b", "", (Charge(Gaussian(3.0), 1),), find_cost_of(account, Gaussian(3.0)), None)
    with pytest.raises(ValueError, match="claims more than the account allows"):
        count.take(AccountEntry(2, count.totals.head, lines[1]["time"], loud).to_line())


def find_cost_of(account: DataAccount, event: Gaussian) -> Spent:
    return find_cost((Charge(event, 1),), account.facts.neighbouring, account.facts.cap)


def test_digests_are_sha256_of_the_line(used: DataAccount) -> None:
    with used.snapshot() as books:
        lines = [line for _, line in books.read_lines()]
    for before, after in pairwise(lines):
        assert json.loads(after)["prev"] == digest_of(before.encode())
