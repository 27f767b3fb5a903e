"""Schedules of learning rates: their shape, and torch's own as an independent computation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from dprecipe.language.training import DescentRate, OneCycle, StepSchedule, WarmSchedule

RATES: TypeAdapter[Any] = TypeAdapter(DescentRate)


def rates(block: dict[str, Any], steps: int, epoch: int) -> list[float]:
    rate = RATES.validate_python(block)
    return [rate.rate(step, steps, epoch) for step in range(steps)]


def test_a_warm_up_rises_to_the_first_rate_and_the_rest_follows() -> None:
    block = {"schedule": "cosine", "from": 2.0, "to": 0.5, "warmup": 2.0}
    found = rates(block, 30, 5)
    assert found[:10] == pytest.approx([0.2 * step for step in range(1, 11)])
    assert found[10:] == pytest.approx(rates({**block, "warmup": None}, 20, 5))
    assert found[-1] == 0.5
    assert rates({"schedule": "linear", "from": 1.0, "to": 1.0, "warmup": 99.0}, 4, 5) == [0.25, 0.5, 0.75, 1.0]


def test_without_a_warm_up_it_is_the_schedule_of_every_mechanism() -> None:
    rate = RATES.validate_python({"schedule": "linear", "from": 1.0, "to": 0.1, "epochs": 3.0})
    assert isinstance(rate, WarmSchedule)
    assert [rate.rate(step, 40, 7) for step in range(40)] == [rate.at(step, 21) for step in range(40)]
    assert "warmup" not in rate.model_dump()


def test_steps_fall_by_their_factor() -> None:
    found = rates({"schedule": "step", "from": 1.0, "factor": 0.1, "every": 1.5}, 10, 2)
    assert found == pytest.approx([1.0] * 3 + [0.1] * 3 + [0.01] * 3 + [0.001])


@pytest.mark.parametrize(("steps", "rise"), [(50, 0.3), (200, 0.5), (10, 0.4)])
def test_one_cycle_is_that_of_torch(steps: int, rise: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3.0, steps, pct_start=rise, cycle_momentum=False)
    expected = []
    for _ in range(steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(expected) < steps:
            theirs.step()
    assert rates({"schedule": "one_cycle", "peak": 3.0, "rise": rise}, steps, 1) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_one_cycle_of_a_few_steps_is_a_rate(steps: int) -> None:
    assert all(
        math.isfinite(rate) and 0 < rate <= 1 for rate in rates({"schedule": "one_cycle", "peak": 1.0}, steps, 1)
    )


@pytest.mark.parametrize(
    "block",
    [
        {"schedule": "step", "from": 1.0, "factor": 1.0, "every": 1.0},
        {"schedule": "one_cycle", "peak": 1.0, "rise": 1.0},
        {"schedule": "one_cycle", "from": 1.0},
        {"schedule": "linear", "from": 1.0, "to": 0.0, "warmup": 0.0},
        {"schedule": "weekly", "from": 1.0, "to": 0.0},
    ],
)
def test_what_is_no_schedule_is_refused(block: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RATES.validate_python(block)


def test_kinds() -> None:
    assert isinstance(RATES.validate_python({"schedule": "one_cycle", "peak": 1}), OneCycle)
    assert isinstance(RATES.validate_python({"schedule": "step", "from": 1, "factor": 0.5, "every": 1}), StepSchedule)
    assert RATES.validate_python(0.5) == 0.5
