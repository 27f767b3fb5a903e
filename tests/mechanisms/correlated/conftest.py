"""A small run with correlated noise: 1,438 digits, passes of five steps."""

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


@pytest.fixture(scope="session")
def cycles() -> Callable[..., Plan]:
    """The plan of the small recipe, with overrides."""
    return lambda *overrides: plan(read_text(RECIPE, "cycles.yaml", overrides))
