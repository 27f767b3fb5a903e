"""A run in stages: they take every step once, with the values that the schedules have where a stage begins."""

from __future__ import annotations

import math

import pytest

from dprecipe.language.training import LearningRateSchedule
from dprecipe.mechanisms.pnsgd.schedule import MAX_PHASES, MAX_STAGES, Stage, convert_to_steps, cut_stages


def schedule(kind: str, start: float, to: float, epochs: float | None = None) -> LearningRateSchedule:
    return LearningRateSchedule.model_validate({"schedule": kind, "from": start, "to": to, "epochs": epochs})


def test_a_constant_run_is_one_stage() -> None:
    assert cut_stages(0.5, [(7, 2.0)], 1_000, 100) == (Stage(1_000, 0.5, 2.0),)


def test_phases_of_noise() -> None:
    assert cut_stages(0.5, [(7, 2.0), (3, 1.0), (1, 4.0)], 20, 5) == (
        Stage(7, 0.5, 2.0),
        Stage(3, 0.5, 1.0),
        Stage(10, 0.5, 4.0),
    )
    # A phase that the run does not reach is no stage; phases alike are one.
    assert cut_stages(0.5, [(7, 2.0), (3, 1.0), (1, 4.0)], 8, 5) == (Stage(7, 0.5, 2.0), Stage(1, 0.5, 1.0))
    assert cut_stages(0.5, [(7, 2.0), (1, 2.0)], 8, 5) == (Stage(8, 0.5, 2.0),)


def test_a_short_linear_schedule_is_followed_step_by_step() -> None:
    actual = cut_stages(schedule("linear", 1.0, 0.2, 1.0), [(1, 2.0)], 12, 5)
    assert [stage.steps for stage in actual] == [1, 1, 1, 1, 8]
    assert [stage.learning_rate for stage in actual] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize("epochs", [None, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("phases", [1, 3, MAX_PHASES])
@pytest.mark.parametrize("steps", [1, 2, 255, 256, 257, 10_007])
def test_stages_take_every_step_once(kind: str, epochs: float | None, phases: int, steps: int) -> None:
    batches, rate = 1_000, schedule(kind, 0.9, 0.1, epochs)
    noise = [(11, 1.0 + index) for index in range(phases)]
    actual = cut_stages(rate, noise, steps, batches)
    assert sum(stage.steps for stage in actual) == steps
    assert len(actual) <= MAX_STAGES
    last = (steps if epochs is None else math.ceil(epochs * batches)) - 1
    first = 0
    for stage in actual:
        progress = min(1.0, first / last) if last > 0 else 1.0
        share = (1 - math.cos(math.pi * progress)) / 2 if kind == "cosine" else progress
        assert stage.learning_rate == pytest.approx(0.9 - 0.8 * share, rel=1e-12)
        assert stage.noise_scale == 1.0 + min(first // 11, phases - 1)
        first += stage.steps
    if epochs is None or last < steps:
        assert actual[-1].learning_rate == pytest.approx(0.1)


def test_lengths_in_passes_are_exact_decimals() -> None:
    assert convert_to_steps(0.1, None, 60_000) == 6_000  # 0.1 * 60,000 is a hair more in binary
    assert convert_to_steps(1.1, None, 10) == 11
    assert convert_to_steps(None, 17, 10) == 17
