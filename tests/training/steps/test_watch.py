"""What is shown of a run while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dprecipe.contract.plan import Length, Plan
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, count_events, drop_first, take_first
from dprecipe.training.steps.watch import SpentCurve, Watch, steps_between_scores


def spent(plan: Plan, charges: list[Charge]) -> float:
    return accountants.epsilon(charges, plan.budget.delta, plan.budget.neighbouring, plan.budget.accountant)


@pytest.mark.parametrize("lost", [0, 1, 7, 29])
def test_what_is_shown_as_spent_is_no_less_than_that_and_never_more_than_the_budget(
    small: Callable[..., Plan], lost: int
) -> None:
    """Also where a crash took events that the plan has to draw anew: the whole plan no longer fits."""
    plan = small()
    charged, done = tuple(take_first(plan.events, lost)), 0
    curve = SpentCurve(plan, charged, done)
    for count in range(lost, 30):
        shown = curve.at(count)
        assert spent(plan, [*charged, *take_first(drop_first(plan.events, done), count - lost)]) <= shown * (1 + 1e-12)
        assert shown <= plan.budget.epsilon
    assert count_events(plan.events) == 30
    assert curve.at(30 + lost) <= plan.budget.epsilon


@pytest.mark.parametrize(
    ("steps", "epoch", "held_out", "expected"),
    [
        (30, 5, 0, 5),  # after each epoch
        (30, 5, 100, 5),
        (30, 5, 1000, 24),  # the work of 24 steps is that of twenty scores
        (30, 5, 10**9, 30),  # at its end alone
        (3000, 5, 100, 150),  # twenty times
        (1, 1, 10**9, 1),
    ],
)
def test_scores_take_a_small_part_of_the_time(steps: int, epoch: int, held_out: int, expected: int) -> None:
    assert steps_between_scores(Length(steps, epoch), 1400, held_out) == expected


def test_a_stop_before_the_first_step_scores_nothing_that_is_not_whole(small: Callable[..., Plan]) -> None:
    """Processes with shards of the average put them together only where a step is about to be scored."""
    gate = SimpleNamespace(stop_reason=None, done=0)
    steps = SimpleNamespace(is_whole=False, steps_done=0, events_done=0, gate=gate)
    module = SimpleNamespace(steps=steps, guard=None)
    loggers: Any = SimpleNamespace(are_used=False, takes_public_scores=False)
    watch = Watch(small(), SpentCurve(small()), None, None, None, lambda *rest: None, lambda content: None, loggers)
    watch.on_train_batch_end(cast(Any, SimpleNamespace(should_stop=True)), module)  # asks for no weights
