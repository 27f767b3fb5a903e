"""Groups of slots: what a run takes and gives back, what is refused, and that the store holds it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from dprecipe.account.account import DataAccount
from dprecipe.account.entries import ReserveAct, SlotsAct
from dprecipe.account.facts import SlotsPart, new_facts
from dprecipe.account.faults import AccountInvalid, AccountRefused
from dprecipe.account.opening import open_account
from dprecipe.account.standing import find_cost
from dprecipe.account.state import INTERRUPTED, SETTLED, VOID
from dprecipe.account.statement import export_statement, verify_statement
from dprecipe.faults import UsageFault
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, count_events
from dprecipe.privacy.filters.cost import NotInAccount
from dprecipe.privacy.filters.filter import mixture_epsilon
from dprecipe.privacy.filters.slots import SlotGroup
from dprecipe.privacy.noisy_sums import FixedSizeGaussian, Gaussian, PoissonGaussian
from tests.account.test_check import edit_rows, run_sql

STEP = PoissonGaussian(0.01, 1.5)
NOISIER = PoissonGaussian(0.005, 2.0)
RUN = (Charge(STEP, 100),)
LESS = (Charge(NOISIER, 60),)
PART = SlotsPart(1.5, 9e-6)


@pytest.fixture
def account(make_account: Callable[..., DataAccount]) -> DataAccount:
    """An account of ε = 2 with a group of slots for three runs."""
    account = make_account(slots=PART)
    account.reserve_slots("year", [Charge(STEP, 300)], 9e-6, "3 × run")
    return account


def left(account: DataAccount, group: str = "year") -> int:
    return next(count_events(found.left) for found in account.list_groups() if found.group == group)


def hold(account: DataAccount) -> None:
    """It verifies, and so does its statement, which says the same."""
    assert account.verify().totals == account.state().totals
    with account.snapshot() as books:
        verify_statement(json.loads(json.dumps(export_statement(books))))


def test_a_group_costs_what_its_slots_compose_to_and_the_filter_has_the_rest(account: DataAccount) -> None:
    state, (group,) = account.state(), account.list_groups()
    exact = SlotGroup((Charge(STEP, 300),), Neighbouring.ADD_OR_REMOVE_ONE).find_epsilon(9e-6)
    assert exact <= group.epsilon <= exact * (1 + 1e-5)
    assert (account.facts.cap.epsilon, account.facts.cap.delta) == (0.5, 1e-6)
    assert state.epsilon == group.epsilon
    account.reserve("a", 1, RUN, "x", slots="year")
    account.reserve("b", 1, (Charge(Gaussian(40.0), 1),), "x")
    after = account.state()
    assert after.filter_epsilon == mixture_epsilon(
        find_cost((Charge(Gaussian(40.0), 1),), account.facts.neighbouring, account.facts.cap), account.facts.cap
    )
    assert after.epsilon == after.filter_epsilon + group.epsilon
    with pytest.raises(AccountRefused, match=r"cap is 2, of which 1\.5 is for slots"):
        account.reserve("c", 1, (Charge(Gaussian(4.0), 1),), "x")
    hold(account)


def test_a_group_is_reserved_once_and_within_the_part_for_slots(account: DataAccount) -> None:
    count = account.state().totals.count
    assert account.reserve_slots("year", [Charge(STEP, 100), Charge(STEP, 200)], 9e-6, "again").what == "3 × run"
    assert account.state().totals.count == count
    with pytest.raises(AccountRefused, match="already has a different group of slots named year"):
        account.reserve_slots("year", [Charge(STEP, 301)], 9e-6, "x")
    with pytest.raises(AccountRefused, match="this group does not fit"):
        account.reserve_slots("more", [Charge(STEP, 1)], 1e-7, "x")  # δ is used up
    with pytest.raises(NotInAccount, match="no fixed dominating pair"):
        account.reserve_slots("fixed", [Charge(FixedSizeGaussian(100, 10, 1.0), 1)], 1e-7, "x")
    for name, charges, delta in (("a b", RUN, 1e-7), ("a", (), 1e-7), ("a", RUN, 0.0)):
        with pytest.raises(UsageFault, match="not valid"):
            account.reserve_slots(name, charges, delta, "x")


def test_several_groups_add_up(make_account: Callable[..., DataAccount]) -> None:
    account = make_account(slots=PART)
    one = account.reserve_slots("one", [Charge(STEP, 100)], 3e-6, "x")
    two = account.reserve_slots("two", [Charge(STEP, 100)], 6e-6, "x")  # decimal numbers: 3e-6 and 6e-6 are 9e-6
    assert account.state().epsilon == pytest.approx(one.epsilon + two.epsilon, rel=1e-12)
    account.reserve("a", 1, RUN, "x", slots="two")
    assert (left(account, "one"), left(account, "two")) == (100, 0)
    hold(account)


def test_an_account_without_a_part_has_no_groups(make_account: Callable[..., DataAccount]) -> None:
    plain = make_account()
    with pytest.raises(UsageFault, match="no part for slots"):
        plain.reserve_slots("year", RUN, 1e-6, "x")
    assert "slots" not in plain.facts.to_json()
    with pytest.raises(UsageFault, match="parts of the cap"):
        new_facts("x", 2.0, 1e-5, "u", Neighbouring.ADD_OR_REMOVE_ONE, slots=SlotsPart(2.0, 1e-6))
    with pytest.raises(AccountRefused, match="no group of slots year"):
        plain.reserve("a", 1, RUN, "x", slots="year")


def test_what_was_not_drawn_is_given_back_by_who_ended_and_by_nobody_else(account: DataAccount) -> None:
    account.reserve("ended", 1, RUN, "x", slots="year")
    assert left(account) == 200
    settled = account.settle("ended", 1, (Charge(STEP, 40),), final=True)
    assert left(account) == 260
    assert settled.slots is not None
    assert settled.slots.counted == (Charge(STEP, 40),)
    assert settled.slots.reserved == RUN
    account.reserve("stopped", 1, RUN, "x", slots="year")
    account.settle("stopped", 1, (Charge(STEP, 40),), final=False)
    account.reserve("empty", 1, LESS, "x", slots="year")
    assert left(account) == 100
    account.void("empty", 1)
    assert left(account) == 160
    hidden = account.find_run("stopped")
    assert hidden is not None
    assert hidden.status == INTERRUPTED
    hold(account)


def test_a_run_that_shows_nothing_before_its_end_gives_nothing_back(make_account: Callable[..., DataAccount]) -> None:
    fields = {"family": "gaussian", "size": 200, "batch": 10, "order": "sequential", "stop": "last"}
    event = ProjectedDescent(neighbouring="replace_one", stages=((10, 4.0, 0.95, 30.0),), **fields)
    account = make_account(epsilon=8.0, slots=SlotsPart(6.0, 9e-6), neighbouring=Neighbouring.REPLACE_ONE)
    account.reserve_slots("year", [Charge(event, 3)], 9e-6, "x")
    account.reserve("a", 1, (Charge(event, 2),), "x", slots="year")
    account.settle("a", 1, (Charge(event, 1),), final=True)
    assert left(account) == 1
    hold(account)


def test_less_noise_more_steps_or_another_group_is_refused(account: DataAccount) -> None:
    account.reserve("a", 1, (Charge(NOISIER, 250),), "x", slots="year")
    for charges in ((Charge(STEP, 51),), (Charge(PoissonGaussian(0.02, 1.5), 1),), (Charge(Gaussian(50.0), 1),)):
        with pytest.raises(AccountRefused, match="has no slots for this run") as refused:
            account.reserve("b", 1, charges, "x", slots="year")
        assert refused.value.affordable_share == 0.0
        with pytest.raises(AccountRefused, match="50 of 300 are left"):
            account.check_fits(charges, slots="year")
    account.check_fits((Charge(STEP, 50),), slots="year")
    with pytest.raises(AccountRefused, match="no group of slots other") as unknown:
        account.reserve("b", 1, RUN, "x", slots="other")
    assert "name one of its own: year" in unknown.value.remedy
    with pytest.raises(AccountRefused, match="has drawn more than it had reserved"):
        account.settle("a", 1, (Charge(STEP, 251),), final=True)
    with pytest.raises(AccountRefused, match="with other slots, or with none"):
        account.reserve("a", 2, (Charge(NOISIER, 250),), "x")


def test_asking_again_counts_once_and_a_later_attempt_takes_what_is_missing(account: DataAccount) -> None:
    first = account.reserve("a", 1, RUN, "x", nonce="n", slots="year")
    assert account.reserve("a", 1, RUN, "x", nonce="n", slots="year") == first
    with pytest.raises(AccountRefused, match="is a copy"):
        account.reserve("a", 1, RUN, "x", nonce="m", slots="year")
    assert left(account) == 200
    second = account.reserve("a", 2, (Charge(STEP, 130),), "x", slots="year", drawn=(Charge(STEP, 30),))
    assert left(account) == 170
    assert second.holds((Charge(STEP, 130),))
    assert not second.holds((Charge(STEP, 131),))
    account.reserve("a", 3, (Charge(STEP, 50), Charge(NOISIER, 20)), "x", slots="year")
    assert left(account) == 150
    with pytest.raises(AccountRefused, match="has no slots"):
        account.reserve("a", 4, (Charge(STEP, 290),), "x", slots="year")
    account.settle("a", 3, (Charge(STEP, 50),), final=False)
    with pytest.raises(AccountRefused, match="older copy"):
        account.reserve("a", 4, RUN, "x", slots="year", drawn=(Charge(STEP, 49),))
    account.reserve("a", 4, RUN, "x", slots="year", drawn=(Charge(STEP, 50),))
    account.settle("a", 4, (Charge(STEP, 90),), final=True)
    assert left(account) == 210
    hold(account)


def test_gaussians_are_taken_by_their_squares_and_come_back(make_account: Callable[..., DataAccount]) -> None:
    account = make_account(slots=PART)
    account.reserve_slots("all", [Charge(Gaussian(4.0), 1)], 9e-6, "x")
    sizes = [8.0, 12.0, 16.0, 20.0]
    for number, sigma in enumerate(sizes):
        account.reserve(str(number), 1, (Charge(Gaussian(sigma), 2),), "x", slots="all")
    account.settle("0", 1, (Charge(Gaussian(8.0), 1),), final=True)
    account.void("1", 1)
    (group,) = account.list_groups()
    squares = sum(charge.count / charge.event.noise_multiplier**2 for charge in group.left)  # type: ignore[attr-defined]
    exact = 1 / 16 - 1 / 64 - 2 / 256 - 2 / 400
    assert exact * (1 - 1e-9) <= squares <= exact
    with pytest.raises(AccountRefused, match="has no slots"):
        account.reserve("5", 1, (Charge(Gaussian(exact**-0.5 * 0.999), 1),), "x", slots="all")
    account.reserve("5", 1, (Charge(Gaussian(exact**-0.5 * 1.001), 1),), "x", slots="all")
    hold(account)


def test_data_stay_bound_while_a_run_holds_slots(account: DataAccount) -> None:
    account.reserve("a", 1, RUN, "x", slots="year")
    account.settle("a", 1, RUN, final=True)
    assert account.state().spent.is_nothing
    with pytest.raises(AccountRefused, match="is for other data"):
        account.bind(b"other".ljust(32))


def test_random_runs_never_hold_more_than_the_group(account: DataAccount) -> None:
    """What all runs hold and what is left is the group, after every step; slots dominate what their run may draw."""
    luck = random.Random(7)
    attempts: dict[str, tuple[int, int]] = {}
    for number in range(40):
        run = f"r{luck.randrange(12)}"
        attempt, planned = attempts.get(run, (0, 0))
        known = account.find_run(run)
        move = luck.choice(["reserve", "settle", "stop", "void"])
        event = luck.choice([STEP, NOISIER])
        try:
            if move == "reserve" or known is None:
                planned = max(planned, luck.randrange(1, 90))
                account.reserve(run, attempt + 1, (Charge(event, planned),), "x", slots="year")
                attempts[run] = (attempt + 1, planned)
            elif move == "void":
                account.void(run, attempt)
            else:
                account.settle(run, attempt, (Charge(event, luck.randrange(planned + 1)),), final=move == "settle")
        except AccountRefused:
            pass
        with account.snapshot() as books:
            runs = list(books.read_runs())
        held = sum(count_events(one.slots.taken) for one in runs if one.slots is not None)
        assert held + left(account) == 300, number
        for one in runs:
            if one.slots is not None:
                assert one.slots.cover(one.slots.asked, account.facts.neighbouring)
    assert {run.status for run in runs} >= {SETTLED, INTERRUPTED, VOID}
    hold(account)


def test_a_forged_group_does_not_verify(account: DataAccount) -> None:
    account.reserve("a", 1, RUN, "x", slots="year")
    state = "replace(state, '\"count\":200', '\"count\":300')"
    edit_rows(account, run_sql(f"UPDATE dprecipe_slots SET state = {state}"))
    with pytest.raises(AccountInvalid, match="rows of groups of slots"):
        account.verify()


def test_no_writer_makes_such_entries(account: DataAccount) -> None:
    with account._store.transaction() as books:
        with pytest.raises(ValueError, match="more slots are reserved"):
            books.append(SlotsAct("large", "x", (Charge(STEP, 10),), 1.5, 1e-9))
        cost = find_cost((Charge(STEP, 301),), account.facts.neighbouring, account.facts.cap_of("year"))
        with pytest.raises(ValueError, match="takes slots that the group does not have"):
            books.append(ReserveAct("a", 1, "x", "", (Charge(STEP, 301),), cost, None, "year"))
        with pytest.raises(ValueError, match="slots of a group that is not there"):
            books.append(ReserveAct("a", 1, "x", "", RUN, cost, None, "other"))
        with pytest.raises(ValueError, match="is there already"):
            books.append(SlotsAct("year", "x", RUN, 0.1, 1e-9))


def test_a_group_said_to_cost_less_does_not_verify(make_account: Callable[..., DataAccount]) -> None:
    account = make_account(slots=PART)
    with account._store.transaction() as books:
        books.append(SlotsAct("cheap", "x", (Charge(STEP, 300),), 0.3, 9e-6))
    with pytest.raises(AccountInvalid, match="ε of the group is less than that of its slots"):
        account.verify()


def test_it_is_there_after_the_account_is_opened_anew(account: DataAccount) -> None:
    account.reserve("a", 1, RUN, "x", nonce="n", slots="year")
    account.close()
    again = open_account(account.place)
    assert again.reserve("a", 1, RUN, "x", nonce="n", slots="year").slots is not None
    assert left(again) == 200
