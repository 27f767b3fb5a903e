"""Small runs with correlated noise: 1,438 digits, passes of five steps or groups of three."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text

RECIPE = """\
recipe: dprecipe/v1
name: cycles
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
model: {kind: logistic_regression}
mechanism:
  kind: correlated
  clip: {norm: 0.3}
  noise: {form: previous_step, previous: 0.8, multiplier: auto}
  sampling: {scheme: fixed_order, batch_size: 288}
budget: {epsilon: 3.0, delta: 1e-5}
training:
  epochs: 4
  optimizer: {kind: sgd, lr: 0.5}
runtime: {checkpoint_seconds: 0.001}
release: {report: false}
"""


BANDS = (
    RECIPE.replace("{form: previous_step, previous: 0.8,", "{form: banded, bands: 3, power: 0.8,")
    .replace("{scheme: fixed_order, batch_size: 288}", "{scheme: cyclic_poisson, batch_size: 240}")
    .replace("epochs: 4", "steps: 18")
)


@pytest.fixture(scope="session")
def bands() -> Callable[..., Plan]:
    """The plan of the small recipe with three bands, six groups, with overrides."""
    return lambda *overrides: plan(read_text(BANDS, "bands.yaml", overrides))


@pytest.fixture(scope="session")
def cycles() -> Callable[..., Plan]:
    """The plan of the small recipe, with overrides."""
    return lambda *overrides: plan(read_text(RECIPE, "cycles.yaml", overrides))
