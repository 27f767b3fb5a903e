"""Every step that a writer can't make is refused on reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dprecipe.account.entries import AccountEntry, Act, BindAct, ReserveAct, SettleAct, VoidAct
from dprecipe.account.facts import AccountFacts
from dprecipe.account.state import KnownState, RunState, Totals, follow, read_run, read_totals
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.noisy_sums import Gaussian

CHARGES = (Charge(Gaussian(20.0), 8),)
FULL, HALF, LARGE = (Spent((value,) * 9) for value in (0.5, 0.25, 1.0))
BIND = BindAct("0" * 64)
TIME = "2026-01-01T00:00:00Z"


def reserve(attempt: int = 1, cost: Spent = FULL, run: str = "one", charges: Sequence[Charge] = CHARGES) -> ReserveAct:
    return ReserveAct(run, attempt, "what", "n", tuple(charges), cost, None)


def settle(attempt: int = 1, cost: Spent = HALF, final: bool = True) -> SettleAct:
    return SettleAct("one", attempt, final, CHARGES, cost)


def play(facts: AccountFacts, acts: Sequence[Act]) -> tuple[Totals, dict[str, RunState]]:
    known, runs = KnownState(Totals.start(facts)), {}
    for act in acts:
        totals = known.totals
        entry = AccountEntry(totals.count, totals.head, TIME, act)
        before = None if isinstance(act, BindAct) else runs.get(act.run)
        known = follow(KnownState(totals, before), entry, entry.to_line())
        if known.run is not None:
            runs[known.run.run] = known.run
    return known.totals, runs


@pytest.mark.parametrize(
    ("acts", "message"),
    [
        ([reserve()], "before the account is bound"),
        ([BIND, reserve(), BIND], "binds other data"),
        ([BIND, settle()], "a settle of a run that has reserved nothing"),
        ([BIND, VoidAct("one", 1)], "a void of a run that has reserved nothing"),
        ([BIND, reserve(charges=())], "a reservation of nothing"),
        ([BIND, reserve(), reserve()], "not a later one"),
        ([BIND, reserve(2), reserve(1)], "not a later one"),
        ([BIND, reserve(), settle(2)], "not the open one"),
        ([BIND, reserve(2), settle(1)], "not the open one"),
        ([BIND, reserve(), settle(cost=LARGE)], "settles more than was reserved"),
        ([BIND, reserve(), settle(final=False, cost=LARGE)], "settles more than was reserved"),
        ([BIND, reserve(), settle(), settle()], "not the open one"),
        ([BIND, reserve(), settle(), VoidAct("one", 1)], "not the open one"),
        ([BIND, reserve(), VoidAct("one", 1), settle()], "not the open one"),
        ([BIND, reserve(), settle(final=False), VoidAct("one", 1)], "has drawn something"),
        (
            [BIND, reserve(), settle(final=False), settle(cost=Spent((0.125,) * 9))],
            "settles less than was settled",
        ),
        ([BIND, reserve(), settle(final=False), reserve(2, Spent((0.125,) * 9))], "reserves less than was settled"),
    ],
)
def test_what_no_writer_does(facts: AccountFacts, acts: list[Act], message: str) -> None:
    play(facts, acts[:-1])
    with pytest.raises(ValueError, match=message):
        play(facts, acts)


def test_what_counts_after_each_step(facts: AccountFacts) -> None:
    story: list[tuple[Act, Spent, int]] = [
        (BIND, Spent((0.0,) * 9), 0),
        (reserve(), FULL, 1),
        (settle(final=False), FULL, 1),
        (reserve(2, HALF), FULL, 1),
        (reserve(3, LARGE), LARGE, 1),
        (reserve(1, HALF, "two"), LARGE + HALF, 2),
        (settle(3, FULL), FULL + HALF, 1),
        (VoidAct("two", 1), FULL, 0),
        (reserve(4, LARGE), LARGE, 1),
        (settle(4, FULL), FULL, 0),
    ]
    for end in range(1, len(story) + 1):
        totals, runs = play(facts, [act for act, _, _ in story[:end]])
        _, spent, opened = story[end - 1]
        assert totals.sums.to_spent() == spent, end
        assert totals.opened == opened
        assert totals.runs == len(runs)
        assert read_totals(totals.to_json()) == totals
        assert all(read_run(run.to_json(), 9) == run for run in runs.values())


def test_binding_again_is_allowed_while_nothing_counts(facts: AccountFacts) -> None:
    totals, _ = play(facts, [BIND, reserve(), VoidAct("one", 1), BindAct("1" * 64)])
    assert totals.commitment == "1" * 64


def test_the_chain_is_of_numbers_and_digests(facts: AccountFacts) -> None:
    totals, _ = play(facts, [BIND])
    good = AccountEntry(1, totals.head, TIME, reserve())
    follow(KnownState(totals), good, good.to_line())
    for bad in (replace(good, seq=0), replace(good, seq=2), replace(good, prev=facts.digest)):
        with pytest.raises(ValueError, match="the chain is broken"):
            follow(KnownState(totals), bad, bad.to_line())
