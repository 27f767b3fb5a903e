"""The check of the noise of paid steps passes on what they draw, and fails on anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dprecipe.contract.certificate import STAGE_NOISE
from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.noise import lattice
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.release.certificate import find_check_differences, list_checks
from dprecipe.release.schema import CheckFacts
from dprecipe.training.checks import stages as stage_check
from dprecipe.training.checks.stages import stage_noise
from tests.sweeps import sweep

RECIPE = """\
recipe: dprecipe/v1
name: table
data:
  train:
    source: csv
    path: people.csv
    columns:
      age: {kind: numeric, min: 0, max: 200}
      gain: {kind: numeric, min: 0, max: 1000000}
      city: {kind: text}
    label: {column: rich, classes: 2}
  size: 3000
  preprocess:
    - dp_count: {noise_multiplier: 40}
    - dp_categories: {columns: [city], width: 3, min_units: 200, noise_multiplier: 30}
    - dp_quantiles: {columns: [age, gain], noise_multiplier: 30}
    - dp_standardize: {columns: [age, gain], noise_multiplier: 30}
    - dp_pca: {components: 3, row_norm: 2.0, noise_multiplier: 30}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 4.0}
  sampling: {scheme: poisson, batch_size: 100}
budget: {epsilon: 8.0, delta: 1e-5}
training: {steps: 3, optimizer: {kind: sgd, lr: 0.5}}
"""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(read_text(RECIPE, "table.yaml"))


def test_the_noise_of_every_step_is_measured(plan: Plan) -> None:
    (check,) = stage_noise(plan)
    assert check.passed
    # count 1, items 1, two quantiles, two moments, the matrix on its diagonal and off it
    assert check.measured.count("gaussian: distance") == 6
    assert check.measured.count("quantile 0.02: distance") == check.measured.count("quantile 0.98: distance") == 1


def test_a_plan_without_paid_steps_has_no_such_check(plan: Plan) -> None:
    bare = make_plan(read_text(RECIPE, "bare.yaml", ["data.preprocess=[{hash: {columns: [city], buckets: 8}}]"]))
    assert stage_noise(bare) == ()
    assert set(list_checks(plan)) - set(list_checks(bare)) == set(STAGE_NOISE)


@pytest.mark.parametrize("kind", ["noisy_count", "partition_selection", "noisy_moments", "noisy_covariance"])
@pytest.mark.parametrize("change", sweep([lambda noise: 0.97 * noise, np.abs], (0,)), ids=["scale", "sign"])
def test_gaussian_noise_of_another_distribution_stops_the_run(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, kind: str, change: Callable[[Any], Any]
) -> None:
    honest = lattice.add_gaussian
    (event,) = {charge.event for charge in plan.stage_charges if charge.event.kind == kind}
    last = [scale for _, scale in stage_check._list_scales(event)][-1]

    def wrong(total: Any, bits: int, scale: float, stream: Any) -> Any:
        noise = honest(total, bits, scale, stream)
        return change(noise) if scale == last else noise

    monkeypatch.setattr(lattice, "add_gaussian", wrong)
    with pytest.raises(RunFailed, match="not what the plan says"):
        stage_noise(plan)


@pytest.mark.parametrize("factor", [0.0, 0.8, 1.25])
def test_a_quantile_drawn_with_another_weight_of_ranks_stops_the_run(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    honest = stage_check.draw_quantile

    def wrong(ranks: Any, level: float, weight: float, *rest: Any) -> float:
        return honest(ranks, level, factor * weight, *rest)

    monkeypatch.setattr(stage_check, "draw_quantile", wrong)
    with pytest.raises(RunFailed, match=r"quantile 0\.02"):
        stage_noise(plan)


def test_a_certificate_without_the_check_does_not_verify(plan: Plan) -> None:
    stated = [CheckFacts(id=name, text=text, passed=True, measured="") for name, text in list_checks(plan).items()]
    assert find_check_differences(stated, plan) == []
    (missing,) = find_check_differences([check for check in stated if check.id not in STAGE_NOISE], plan)
    assert "stage_noise is missing" in missing
