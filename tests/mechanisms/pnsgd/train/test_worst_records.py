"""The search attains the constants that are proved, and never exceeds them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pnsgd.train import worst_records
from dprecipe.mechanisms.pnsgd.train.run import build_objective
from dprecipe.mechanisms.pnsgd.train.worst_records import find_worst_cases

Planned = Callable[..., Plan]

CASES = [
    ((), (0.99, 0.99, 0.99)),
    (("mechanism.constraint={kind: box, bound: 0.7}",), (0.98, 0.95, 0.99)),
    (("model={kind: softmax_regression}", "mechanism.constraint.radius=20"), (0.99, 0.98, 0.99)),
    (("model={kind: huber_svm, width: 0.2}", "mechanism.learning_rate=0.1"), (0.99, 0.99, 0.99)),
]


@pytest.mark.parametrize(("overrides", "shares"), CASES, ids=str)
def test_the_constants_are_attained(
    hidden: Planned, overrides: tuple[str, ...], shares: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worst_records, "ANGLES", 64)
    monkeypatch.setattr(worst_records, "PLANES", 1)
    monkeypatch.setattr(worst_records, "POINTS", 120)
    plan = hidden(*overrides)
    proven, found = plan.mechanism_plan.descent.proven, find_worst_cases(build_objective(plan))
    pairs = (
        (found.norm, proven.lipschitz),
        (found.pair.distance, proven.gradient_sensitivity),
        (found.steepest, proven.smoothness),
    )
    for (attained, constant), share in zip(pairs, shares, strict=True):
        assert share * constant < attained <= constant * (1 + 1e-9)
    assert found.flattest >= proven.strong_convexity - 1e-9
    assert 0.99 * proven.largest_norm < found.reach <= proven.largest_norm
    assert 0.99 * proven.diameter < found.across <= proven.diameter
