"""What is shown of a run while it goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dprecipe.mechanisms.plan import Plan
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, count_events, drop_first, take_first
from dprecipe.training.watch import SpentCurve


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
