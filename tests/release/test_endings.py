"""How a run can't have ended: consistent certificates, made by the package itself, of states that no gate produces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.cross_check import LibraryAnswer
from dprecipe.privacy.events import Charge
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.release.verify import verify

CHEAP_AND_DEAR = (
    "training.steps=60",
    "mechanism.noise=[{family: gaussian, multiplier: 20000.0, steps: 59}, {family: gaussian, multiplier: 1.39}]",
)
LARGER_BUDGET = ("budget.epsilon=4.0", "mechanism.noise.multiplier=1.2")
Attempt = tuple[list[tuple[int, int]], str | None]
"""(phase, events settled) in turn; a negative number is reserved and not settled; and how it was closed."""


@pytest.fixture
def forge(
    tmp_path: Path, plan_of: Callable[..., Plan], facts_of: Callable[..., Any], put_release: Callable[..., Any]
) -> Callable[..., list[str]]:
    """What verify says of a run in these attempts, ledger beside it."""

    def forge(overrides: tuple[str, ...], attempts: list[Attempt], trained: int) -> list[str]:
        plan = plan_of(overrides=(*overrides, "release.report=false"))
        path = tmp_path / "run" / "private" / "ledger.jsonl"
        path.parent.mkdir(parents=True)
        for events, reason in attempts:
            writer = LedgerWriter(path, plan.digest)
            for phase, count in events:
                writer.reserve(plan.events[phase].event, abs(count))
                if count > 0:
                    writer.settle(plan.events[phase].event, count)
            if reason is None:
                writer.abandon()
            else:
                writer.close(reason)  # type: ignore[arg-type]
        ledger = read(path)
        lost_steps = sum(charge.count for charge in ledger.charges) - trained
        put_release(tmp_path / "run" / "release", plan, ledger, facts_of(steps_lost=lost_steps))
        try:
            verify(tmp_path / "run" / "release")
        except CertificateInvalid as invalid:
            return list(invalid.failures)
        return []

    return forge


IMPOSSIBLE: dict[str, tuple[tuple[str, ...], list[Attempt], int, str]] = {
    "the dear phase left out": (
        CHEAP_AND_DEAR,
        [([(0, 30)], "interrupted"), ([(0, 29)], "budget")],
        59,
        "budget.stop_reason",
    ),
    "one cheap event": (CHEAP_AND_DEAR, [([(0, 1)], "interrupted"), ([], "budget")], 1, "budget.stop_reason"),
    "cheap events with a model of none": (
        CHEAP_AND_DEAR,
        [([(0, 59)], "interrupted"), ([], "budget")],
        0,
        "budget.stop_reason",
    ),
    "half of a plain run": ((), [([(0, 30)], "interrupted"), ([], "budget")], 30, "budget.stop_reason"),
    "all but one": ((), [([(0, 30)], "interrupted"), ([(0, 29)], "budget")], 59, "budget.stop_reason"),
    "a budget with room": (LARGER_BUDGET, [([(0, 60)], "interrupted"), ([], "budget")], 0, "budget.stop_reason"),
    "all trained, and stopped": ((), [([(0, 60)], "interrupted"), ([], "budget")], 60, "budget.stop_reason"),
    "nothing settled": ((), [([(0, -60)], None), ([], "completed")], 60, "budget.events_reserved_unsettled"),
    "completed with nothing trained": ((), [([(0, 60)], "interrupted"), ([], "completed")], 0, "sampling.steps_tr"),
    "completed but for one": ((), [([(0, 60)], "interrupted"), ([], "completed")], 59, "sampling.steps_trained"),
    "more trained than planned": (
        LARGER_BUDGET,
        [([(0, 60)], "interrupted"), ([(0, 10)], "completed")],
        70,
        "sampling.steps_trained",
    ),
}


@pytest.fixture
def agreeing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second library that says what the claim says, at once: how a run ended is no question to it."""

    def answer(charges: Sequence[Charge], delta: float, *more: Any) -> LibraryAnswer:
        return LibraryAnswer("dp_accounting.pld", "0", accountants.epsilon(charges, delta, more[0], "pld"))

    monkeypatch.setattr(cross_check, "ask_library", answer)


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_no_run_ends_so(what: str, agreeing_library: None, forge: Callable[..., list[str]]) -> None:
    overrides, attempts, trained, named = IMPOSSIBLE[what]
    assert any(failure.startswith(named) for failure in forge(overrides, attempts, trained))


POSSIBLE: dict[str, tuple[tuple[str, ...], list[Attempt], int]] = {
    "completed in two attempts": ((), [([(0, 30)], "interrupted"), ([(0, 30)], "completed")], 60),
    "completed, then published": ((), [([(0, 60)], "completed"), ([], "completed")], 60),
    "begun again within the budget": (LARGER_BUDGET, [([(0, 10), (0, -1)], None), ([(0, 60)], "completed")], 60),
    "a crash whose loss the budget did not hold": ((), [([(0, 10), (0, -1)], None), ([(0, 49)], "budget")], 59),
    "a checkpoint that was lost at the end": ((), [([(0, 60)], "completed"), ([], "budget")], 0),
}


@pytest.mark.parametrize("what", POSSIBLE)
def test_what_gates_do_verifies(what: str, forge: Callable[..., list[str]]) -> None:
    assert forge(*POSSIBLE[what]) == []


def test_a_dear_phase_that_a_crash_made_unaffordable_is_left_out_honestly(
    plan_of: Callable[..., Plan], forge: Callable[..., list[str]]
) -> None:
    """The cheap phase was charged once too often: then the budget does not hold the plan, and the gate stops before
    the dear event. The certificate says so: one step is lost, one was never made."""
    plan = plan_of(overrides=CHEAP_AND_DEAR)
    cheap, dear = (charge.event for charge in plan.events)
    terms = (plan.budget.delta, plan.budget.neighbouring, plan.budget.accountant)
    exceeds = accountants.epsilon([Charge(cheap, 60), Charge(dear, 1)], *terms) > plan.budget.epsilon
    failures = forge(CHEAP_AND_DEAR, [([(0, -1)], None), ([(0, 59)], "budget")], 59)
    assert (failures == []) == exceeds
