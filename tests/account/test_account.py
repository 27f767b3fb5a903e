"""Reserve, settle, void: what counts after each, and what is refused."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dprecipe.account import entries
from dprecipe.account.account import DataAccount
from dprecipe.account.entries import RunClaim, VoidAct
from dprecipe.account.faults import AccountRefused
from dprecipe.account.opening import open_account
from dprecipe.account.requests import commit
from dprecipe.account.standing import find_cost
from dprecipe.account.state import INTERRUPTED, OPEN, SETTLED, VOID
from dprecipe.faults import UsageFault
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from tests.account.conftest import DATA

STEP = PoissonGaussian(0.01, 1.5)
PLAN = (Charge(STEP, 200),)
HALF = (Charge(STEP, 100),)
MORE = (Charge(STEP, 220),)
OTHER = b"other data".ljust(32)


def cost(account: DataAccount, charges: tuple[Charge, ...]) -> Spent:
    return find_cost(charges, account.facts.neighbouring, account.facts.cap)


def test_a_reservation_counts_in_full_and_settles_at_what_was_drawn(account: DataAccount) -> None:
    reservation = account.reserve("one", 1, PLAN, "recipe", nonce="a")
    assert account.state().spent == cost(account, PLAN) == reservation.reserved
    assert account.state().totals.opened == 1
    settlement = account.settle("one", 1, HALF, final=True)
    assert account.state().spent == cost(account, HALF) == settlement.counted == settlement.after
    assert settlement.reserved == cost(account, PLAN)
    assert account.state().totals.opened == 0
    assert settlement.position == account.state().totals.count == 3
    assert settlement.entries == account.state().totals.head


def test_asked_again_everything_counts_once(account: DataAccount) -> None:
    first = account.reserve("one", 1, PLAN, "recipe", nonce="a")
    count = account.state().totals.count
    assert account.reserve("one", 1, PLAN, "recipe", nonce="a") == first
    assert account.state().totals.count == count
    settled = account.settle("one", 1, HALF, final=True)
    account.reserve("two", 1, HALF, "recipe", nonce="b")
    assert account.settle("one", 1, HALF, final=True) == settled  # position and sums of then, not of now
    account.void("two", 1)
    count = account.state().totals.count
    account.void("two", 1)
    assert account.state().totals.count == count
    assert account.state().spent == cost(account, HALF)


def test_a_later_attempt_replaces_the_reservation_by_the_larger(account: DataAccount) -> None:
    account.reserve("one", 1, PLAN, "recipe", nonce="a")
    account.reserve("one", 2, MORE, "recipe", nonce="b")
    assert account.state().spent == cost(account, MORE)
    account.reserve("one", 3, HALF, "recipe", nonce="c")  # what attempt 2 reserved may have been drawn
    assert account.state().spent == cost(account, MORE)
    assert account.state().totals.opened == 1
    run = account.find_run("one")
    assert run is not None
    assert (run.attempt, run.status) == (3, OPEN)


def test_an_interrupted_run_keeps_its_reservation(account: DataAccount) -> None:
    account.reserve("one", 1, PLAN, "recipe", nonce="a")
    account.settle("one", 1, HALF, final=False)
    run = account.find_run("one")
    assert run is not None
    assert (run.status, run.drawn) == (INTERRUPTED, cost(account, HALF))
    assert account.state().spent == cost(account, PLAN)
    assert account.state().totals.opened == 1
    account.reserve("one", 2, MORE, "recipe", nonce="b", drawn=HALF)
    account.settle("one", 2, PLAN, final=True)
    assert account.state().spent == cost(account, PLAN)


def test_a_run_that_hides_its_iterates_gets_nothing_back(make_account: Callable[..., DataAccount]) -> None:
    account = make_account(neighbouring=Neighbouring.REPLACE_ONE)
    hidden = ProjectedDescent("replace_one", "gaussian", 100, 1, "permuted", "last", ((100, 9.0, 0.99, 30.0),))
    charges = (Charge(hidden, 1), Charge(Gaussian(30.0), 2))
    account.reserve("one", 1, charges, "recipe", nonce="a")
    before = account.state().spent
    settlement = account.settle("one", 1, charges[:1], final=True)
    assert settlement.counted == before == account.state().spent


@pytest.mark.parametrize("final", [True, False])
def test_a_hidden_event_that_the_account_knows_is_not_drawn_again(
    make_account: Callable[..., DataAccount], final: bool
) -> None:
    """Nothing of it is seen before its end, so that it counts once however often it is begun; then its end is seen."""
    account = make_account(neighbouring=Neighbouring.REPLACE_ONE)
    hidden = ProjectedDescent("replace_one", "gaussian", 100, 1, "permuted", "last", ((100, 9.0, 0.99, 30.0),))
    paid, whole = (Charge(Gaussian(30.0), 2),), (Charge(Gaussian(30.0), 2), Charge(hidden, 1))
    account.reserve("one", 1, whole, "recipe", nonce="a")
    account.reserve("one", 2, whole, "recipe", nonce="b", drawn=paid, nonces={1: "a"})  # killed meanwhile
    account.settle("one", 2, whole, final=final)
    before = account.state()
    for attempt in (3, 4):
        with pytest.raises(AccountRefused, match="has not settled: the run's folder is an older copy"):
            account.reserve("one", attempt, whole, "recipe", nonce="c", drawn=paid, nonces={2: "b"})
    assert account.state() == before
    account.reserve("one", 3, whole, "recipe", nonce="c", drawn=whole, nonces={2: "b"})  # it only publishes
    assert account.state().spent == before.spent == cost(account, whole)


def test_void_counts_nothing_and_needs_an_empty_ledger(account: DataAccount) -> None:
    account.reserve("one", 1, PLAN, "recipe", nonce="a")
    with pytest.raises(AccountRefused, match="can't be void"):
        account.void("one", 1, HALF)
    account.void("one", 1)
    assert account.state().spent.is_nothing
    account.reserve("one", 2, PLAN, "recipe", nonce="b")
    account.settle("one", 2, HALF, final=False)
    with pytest.raises(AccountRefused, match="has drawn noise, according to account admissions"):
        account.void("one", 2)
    account.settle("one", 2, PLAN, final=True)
    with pytest.raises(AccountRefused, match="can't be void"):
        account.void("one", 2)


def test_the_cap_refuses_and_says_what_fits(account: DataAccount) -> None:
    large = (Charge(STEP, 2000),)
    account.reserve("one", 1, large, "recipe", nonce="a")
    assert account.state().epsilon < 2
    with pytest.raises(AccountRefused, match=r"with it, ε would be .*, and the cap is 2 .*1 open reserv") as caught:
        account.reserve("two", 1, (Charge(STEP, 4000),), "recipe", nonce="b")
    fits = int(caught.value.remedy.partition("about ")[2].partition(" of its 4000 events")[0])
    assert 0 < fits < 4000
    assert caught.value.affordable_share == pytest.approx(fits / 4000, abs=1e-3)
    assert account.find_run("two") is None
    account.reserve("two", 1, (Charge(STEP, fits),), "recipe", nonce="b")  # the remedy works
    with pytest.raises(AccountRefused):
        account.reserve("three", 1, (Charge(STEP, 4000 - fits),), "recipe", nonce="c")
    assert 1.9 < account.state().epsilon <= 2 < account.state().odometer


def test_a_refused_attempt_leaves_the_reservation_as_it_was(account: DataAccount) -> None:
    account.reserve("one", 1, PLAN, "recipe", nonce="a")
    before = account.state()
    with pytest.raises(AccountRefused, match="does not fit"):
        account.reserve("one", 2, (Charge(STEP, 100_000),), "recipe", nonce="b")
    assert account.state() == before
    account.settle("one", 1, HALF, final=True)


def test_what_can_never_fit_is_refused_so(account: DataAccount) -> None:
    with pytest.raises(AccountRefused, match="this run does not fit into account") as caught:
        account.reserve("one", 1, (Charge(Gaussian(0.001), 1),), "recipe")
    assert "nothing more fits" in caught.value.remedy
    assert caught.value.affordable_share == 0
    assert account.state().totals.runs == 0


def test_copies_and_older_folders_of_a_run_are_refused(account: DataAccount) -> None:
    account.reserve("one", 1, PLAN, "recipe", nonce="a")
    with pytest.raises(AccountRefused, match="is a copy, or older than the run"):
        account.reserve("one", 1, PLAN, "recipe", nonce="b")  # two machines begin the same attempt
    with pytest.raises(AccountRefused, match="is a copy, or older than the run"):
        account.reserve("one", 1, HALF, "recipe", nonce="a")  # the same attempt of another plan
    account.settle("one", 1, HALF, final=False)
    with pytest.raises(AccountRefused, match="is a copy, or older than the run"):
        account.reserve("one", 1, PLAN, "recipe", nonce="a")  # a folder from before the interruption
    less = (Charge(STEP, 50),)
    with pytest.raises(AccountRefused, match="the run's folder is an older copy"):
        account.reserve("one", 2, PLAN, "recipe", nonce="b", drawn=less)
    with pytest.raises(AccountRefused, match="the run's folder is an older copy"):
        account.settle("one", 1, less, final=True)
    assert account.state().spent == cost(account, PLAN)


@pytest.mark.parametrize("final", [True, False])
def test_settling_more_than_was_reserved_is_refused(account: DataAccount, final: bool) -> None:
    account.reserve("one", 1, PLAN, "recipe", nonce="a")
    with pytest.raises(AccountRefused, match="has drawn more than it had reserved"):
        account.settle("one", 1, MORE, final=final)
    assert account.state().spent == cost(account, PLAN)


def test_settling_otherwise_or_another_attempt_is_refused(account: DataAccount) -> None:
    with pytest.raises(AccountRefused, match="knows no attempt 1 of run one"):
        account.settle("one", 1, HALF, final=True)
    account.reserve("one", 1, PLAN, "recipe", nonce="a")
    with pytest.raises(AccountRefused, match="as its last: that is 1"):
        account.settle("one", 2, HALF, final=True)
    account.settle("one", 1, HALF, final=True)
    with pytest.raises(AccountRefused, match="is already settled in account admissions, with other values"):
        account.settle("one", 1, PLAN, final=True)


def test_rounding_never_makes_a_whole_run_more_than_its_reservation(account: DataAccount) -> None:
    """The ledger has the same events in other portions, whose sum may differ in the last digit."""
    parts = (Charge(Gaussian(21.0), 3), Charge(STEP, 7), Charge(Gaussian(17.0), 5))
    account.reserve("one", 1, parts, "recipe", nonce="a")
    shuffled = (Charge(Gaussian(17.0), 5), Charge(Gaussian(21.0), 3), Charge(STEP, 7))
    assert account.settle("one", 1, shuffled, final=True).counted == account.state().spent


def test_a_settled_run_that_goes_on_reserves_again(account: DataAccount) -> None:
    account.reserve("one", 1, PLAN, "recipe", nonce="a")
    account.settle("one", 1, HALF, final=True)
    account.reserve("one", 2, MORE, "recipe", nonce="b", drawn=HALF)
    run = account.find_run("one")
    assert run is not None
    assert run.status == OPEN
    assert account.state().totals.runs == 1
    account.settle("one", 2, MORE, final=True)
    assert account.find_run("one").status == SETTLED
    assert account.state().spent == cost(account, MORE)


def test_a_reservation_holds_what_is_within_it(account: DataAccount) -> None:
    reservation = account.reserve("one", 1, PLAN, "recipe", nonce="a")
    assert reservation.holds(PLAN)
    assert reservation.holds(HALF)
    assert reservation.holds(())
    assert not reservation.holds(MORE)
    assert not reservation.holds((Charge(Gaussian(0.5), 1),))


def test_the_largest_epsilon_of_a_run(make_account: Callable[..., DataAccount]) -> None:
    account = make_account(max_epsilon_per_run=0.5)
    with pytest.raises(AccountRefused, match=r"the run's ε is 0\.6, and account admissions allows a run at most 0\.5"):
        account.reserve("one", 1, PLAN, "recipe", claim=RunClaim(0.6, 1e-6))
    with pytest.raises(AccountRefused, match="allows a run at most"):
        account.reserve("one", 1, (Charge(STEP, 4000),), "recipe")  # no claim: what the filter says of it alone
    with pytest.raises(AccountRefused, match="allows a run at most"):
        account.reserve("one", 1, PLAN, "recipe", claim=RunClaim(math.nan, 1e-6))
    account.reserve("one", 1, PLAN, "recipe", claim=RunClaim(0.5, 1e-6))


def test_an_account_is_bound_once(make_account: Callable[..., DataAccount]) -> None:
    account = make_account(data=None)
    with pytest.raises(UsageFault, match="bound to no data yet"):
        account.reserve("one", 1, PLAN, "recipe")
    assert account.bind(OTHER) == ()
    assert account.bind(b"the data".ljust(32)) == ()  # nothing was counted: the first binding was a mistake
    account.bind(b"the data".ljust(32))
    assert account.state().totals.count == 2
    account.reserve("one", 1, PLAN, "recipe")
    with pytest.raises(AccountRefused, match="is for other data than these"):
        account.bind(OTHER)
    account.settle("one", 1, HALF, final=True)
    with pytest.raises(AccountRefused, match="is for other data than these"):
        account.bind(OTHER)


def test_the_same_data_in_a_file_beside_is_warned_of(make_account: Callable[..., DataAccount], tmp_path: Path) -> None:
    first, second = make_account("one.db", "first"), make_account("two.db", "second", data=None)
    (tmp_path / "notes.db").write_text("no account")
    (tmp_path / "cut.db").write_bytes((tmp_path / "one.db").read_bytes()[:5000])
    (warning,) = second.bind(b"the data's digest".ljust(32))
    assert "first (one.db)" in warning
    assert len(first.bind(b"the data's digest".ljust(32))) == 1
    third = make_account("three.db", "third", data=OTHER)
    assert third.bind(OTHER) == ()


def test_an_account_is_the_same_by_every_name(make_account: Callable[..., DataAccount], tmp_path: Path) -> None:
    """Links, other spellings, and links of folders lead to one account and its one log; so do the warnings about other
    accounts of the same data, beside the file itself, and about a copy of it."""
    for folder in ("real", "elsewhere"):
        (tmp_path / folder).mkdir()
    account, beside = make_account("real/a.db", "first"), make_account("real/b.db", "second")
    make_account("elsewhere/c.db", "third").close()
    (tmp_path / "elsewhere" / "link.db").symlink_to("../real/a.db")
    (tmp_path / "elsewhere" / "other.db").symlink_to("../real/b.db")
    (tmp_path / "folder").symlink_to("real")
    for number, name in enumerate(("real/a.db", "real/../folder/./a.db", "elsewhere/link.db"), start=1):
        other = open_account(name, tmp_path)
        other.reserve(f"run{number}", 1, HALF, "recipe")
        assert other.facts == account.facts
        assert other.state() == account.state()
        assert account.state().totals.runs == number
        warned = [warning.split("account ")[1].split(",")[0] for warning in other.bind(DATA)]
        assert warned == (["third (c.db)", "second (other.db)"] if "elsewhere" in name else ["second (b.db)"])
        other.close()
    beside.close()
    for name in ("elsewhere/link.db", "folder/a.db"):
        with pytest.raises(UsageFault, match="nothing is overwritten"):
            make_account(name)
    account.close()
    shutil.copy(tmp_path / "real" / "a.db", tmp_path / "real" / "copy.db")
    assert any("first (copy.db)" in warning for warning in open_account("elsewhere/link.db", tmp_path).bind(DATA))


def test_commitments_of_two_accounts_differ(make_account: Callable[..., DataAccount]) -> None:
    first, second = make_account("one.db", "first"), make_account("two.db", "second")
    assert first.state().totals.commitment != second.state().totals.commitment
    assert commit(b"k" * 32, b"d") != commit(b"k" * 32, b"e")


@pytest.mark.parametrize(
    ("run", "attempt", "nonce"),
    [("", 1, ""), ("a/b", 1, ""), ("a\n", 1, ""), ("x" * 101, 1, ""), ("a", 0, ""), ("a", 10**7, ""), ("a", 1, "ü")],
)
def test_names_that_can_not_be(account: DataAccount, run: str, attempt: int, nonce: str) -> None:
    with pytest.raises(UsageFault, match="is not valid"):
        account.reserve(run, attempt, PLAN, "recipe", nonce=nonce)


def test_names_of_strangers_are_kept_as_printable_text(account: DataAccount) -> None:
    account.reserve("one", 1, PLAN, "x\x1b[2J\n\u202e'; DROP TABLE dprecipe_entries; --" + "y" * 500)
    with account.snapshot() as books:
        (line,) = [line for _, line in books.read_lines() if '"reserve"' in line]
    (entry,) = [entries.parse_entry(line, len(account.facts.orders))]
    assert entry.act.what.startswith(r"x\u001b[2J\u000a\u202e'; DROP TABLE")
    assert len(entry.act.what) == entries.MAX_WHAT


def test_a_clock_that_is_set_back_changes_nothing(account: DataAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprecipe.account.books.tell_time", lambda: "1999-12-31T23:59:59Z")
    account.reserve("one", 1, PLAN, "recipe")
    monkeypatch.setattr("dprecipe.account.books.tell_time", lambda: "2030-01-01T00:00:00Z")
    account.settle("one", 1, HALF, final=True)
    assert account.verify().totals == account.state().totals


def test_two_clients_see_each_other(account: DataAccount, tmp_path: Path) -> None:
    other = open_account("admissions.db", tmp_path)
    account.reserve("one", 1, (Charge(STEP, 2000),), "recipe", nonce="a")
    with pytest.raises(AccountRefused):
        other.reserve("two", 1, (Charge(STEP, 4000),), "recipe", nonce="b")
    account.void("one", 1)
    other.reserve("two", 1, (Charge(STEP, 3000),), "recipe", nonce="b")
    assert account.find_run("two") is not None
    assert account.find_run("one").status == VOID


def test_a_forked_process_has_a_connection_of_its_own(account: DataAccount) -> None:
    account.reserve("parent", 1, HALF, "recipe")
    child = os.fork()
    if child == 0:
        try:
            account.reserve("child", 1, HALF, "recipe")
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    account.reserve("parent2", 1, HALF, "recipe")
    assert account.verify().totals.runs == 3


def test_a_settlement_names_one_release_and_a_later_one_replaces_it(account: DataAccount) -> None:
    first, second = (f"sha256:{digit * 64}" for digit in "ab")
    account.reserve("a", 1, PLAN, "x")
    account.settle("a", 1, HALF, final=True)  # before it is known what is released
    known = account.settle("a", 1, HALF, final=True, release=first)
    assert account.settle("a", 1, HALF, final=True, release=first) == known
    assert account.settle("a", 1, HALF, final=True) == known
    again = account.settle("a", 1, HALF, final=True, release=second)
    assert again.position == known.position + 1
    assert again.counted == known.counted == account.state().spent
    with pytest.raises(AccountRefused, match="with other values"):
        account.settle("a", 1, PLAN, final=True, release=first)
    run = account.find_run("a")
    assert run is not None
    assert run.release == second
    account.reserve("a", 2, PLAN, "x", drawn=HALF)  # a resumed run has no release yet
    assert account.find_run("a").release is None  # type: ignore[union-attr]
    account.verify()


def test_no_entry_tells_how_long_a_run_took(account: DataAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    """The duration of some runs is secret, and the public statement has every entry."""
    clock = iter(f"2026-11-23T10:00:{second:02}Z" for second in range(60))
    monkeypatch.setattr("dprecipe.account.books.tell_time", lambda: next(clock))
    account.reserve("a", 1, PLAN, "x")
    account.settle("a", 1, PLAN, final=True)
    account.reserve("b", 1, PLAN, "x")
    account.void("b", 1, ())
    with account.snapshot() as books:
        times = [json.loads(line)["time"] for _, line in books.read_lines()][1:]
    assert [time[-3:-1] for time in times] == ["00", "00", "01", "01"]
    account.verify()
    monkeypatch.setattr("dprecipe.account.books.SettleAct", VoidAct)  # a writer that tells it
    account.reserve("c", 1, PLAN, "x")
    with pytest.raises(ValueError, match="tells how long the run took"):
        account.settle("c", 1, PLAN, final=True)
