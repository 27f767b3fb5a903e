"""A small tuned recipe: a few short runs of a linear model on the digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dprecipe.mechanisms.plan import Plan
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read

RECIPE = """\
recipe: dprecipe/v1
name: small
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
  preprocess: [{clip_features: {norm: 4.0}}]
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training:
  steps: 6
  optimizer: {kind: sgd, lr: 1.0}
tuning:
  runs: {kind: negative_binomial, mean: 4, shape: 0.5}
  over:
    - {key: training.optimizer.lr, range: [0.1, 4.0], scale: log}
    - {key: mechanism.clip.norm, values: [0.5, 1.0]}
  score: {metric: accuracy}
"""

PAID = """\
  preprocess:
    - flatten: {}
    - dp_standardize: {bounds: [0, 16], share: 0.05}
    - dp_pca: {components: 12, row_norm: 10.0, share: 0.05}
    - clip_features: {norm: 4.0}
"""


@pytest.fixture
def staged(tmp_path: Path) -> Callable[..., Plan]:
    """The plan of the small recipe behind two paid steps, with overrides."""
    recipe = tmp_path / "staged.yaml"
    recipe.write_text(RECIPE.replace("  preprocess: [{clip_features: {norm: 4.0}}]\n", PAID), encoding="utf-8")
    return lambda *overrides: plan(read(recipe, overrides))


@pytest.fixture
def tuned(tmp_path: Path) -> Callable[..., Plan]:
    """The plan of the small recipe, with overrides."""
    recipe = tmp_path / "small.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    return lambda *overrides: plan(read(recipe, overrides))
