"""What is tried before a private record is seen passes on what runs, and fails on what must not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pate.train import checks
from dprecipe.mechanisms.pate.train.program import lesson_of, teachers_of

Planned = Callable[..., Plan]
CPU = torch.device("cpu")


@pytest.mark.parametrize("aggregator", ["lnmax", "gnmax", "confident", "interactive"])
def test_sound_noise_passes(votes_plan: Planned, aggregator: str) -> None:
    check = checks.noise_scale(votes_plan(aggregator, 10))
    assert check.passed
    assert check.measured.count("planned distribution") == (1 if "nmax" in aggregator else 2)


@pytest.mark.parametrize("change", [lambda x: 0.97 * x, lambda x: 1.03 * x, lambda x: x + 0.5, np.abs])
@pytest.mark.parametrize("aggregator", ["lnmax", "gnmax"])
def test_other_noise_stops_the_run(
    votes_plan: Planned, monkeypatch: pytest.MonkeyPatch, aggregator: str, change: Callable[[Any], Any]
) -> None:
    real = checks.noise
    monkeypatch.setattr(checks, "noise", lambda *arguments: change(real(*arguments)))
    with pytest.raises(RunFailed, match="not what the plan says"):
        checks.noise_scale(votes_plan(aggregator, 10))


def test_the_partition_passes() -> None:
    assert checks.check_parts(7).passed


@pytest.mark.parametrize(
    "dealing",
    [
        lambda names, key, count: np.arange(len(names)) % count,  # by position: one more moves all that follow
        lambda names, key, count: np.argsort([hash(name) for name in names]) % count,
    ],
)
def test_a_partition_that_moves_others_is_refused(monkeypatch: pytest.MonkeyPatch, dealing: Any) -> None:
    monkeypatch.setattr(checks, "deal_parts", dealing)
    with pytest.raises(RunFailed, match="goes to several teachers"):
        checks.check_parts(7)


STEPS = "{steps: 5000, batch_size: 8, optimizer: {kind: adam, lr: 0.01}}"


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ("{kind: logistic_regression}", STEPS),
        ("{kind: logistic_regression}", "null"),
        ("{kind: mlp, hidden: [8]}", STEPS),
        ("{kind: random_forest, trees: 500}", "null"),
    ],
)
def test_teachers_that_learn_from_their_own_part_pass(digits: Planned, model: str, training: str) -> None:
    flat = "data.preprocess=[{flatten: {}}]"
    plan = digits(f"mechanism.teachers.model={model}", f"mechanism.teachers.training={training}", flat)
    assert checks.check_vote_sensitivity(lesson_of(plan, teachers_of(plan)), CPU).passed


def test_teachers_that_share_anything_are_refused(digits: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, real = digits(), checks.collect_votes

    def normalised(task: Any, group: Any, parts: Any, take: Any, queries: Any, device: Any) -> Any:
        everyone, _ = take(parts.order)
        return real(task, group, parts, lambda i: (take(i)[0] - everyone.mean(0), take(i)[1]), queries, device)

    monkeypatch.setattr(checks, "collect_votes", normalised)
    with pytest.raises(RunFailed, match="changed the votes of another"):
        checks.check_vote_sensitivity(lesson_of(plan, teachers_of(plan)), CPU)


def test_a_lesson_has_the_length_of_the_recipe(digits: Planned) -> None:
    plan = digits()
    task = lesson_of(plan, teachers_of(plan))
    assert (task.steps, task.steps_per_epoch, task.shape, task.classes) == (60, 3, (1, 8, 8), 10)  # 40 records, 16 each
    plan = digits(
        "mechanism.teachers.training={steps: null, epochs: 2.5, batch_size: 32, optimizer: {kind: adam, lr: 0.01}}"
    )
    task = lesson_of(plan, teachers_of(plan))
    assert (task.steps, task.steps_per_epoch) == (5, 2)
