"""Small last-iterate releases on synthetic records: planned in no time, descended in less."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dprecipe.contract.plan import Plan
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read

RECORDS, FEATURES = 400, 5
RECIPE = """\
recipe: dprecipe/v1
name: hidden
data:
  train: {source: npz, path: %(folder)s/records.npz, shape: [5], classes: 2, records: [0, 300]}
  test: {source: npz, path: %(folder)s/records.npz, shape: [5], classes: 2, records: [300, 400], access: public}
  size: 300
  preprocess: [{clip_features: {norm: 1.0}}]
model: {kind: logistic_regression, l2: 0.01}
mechanism:
  kind: pnsgd
  constraint: {kind: ball, radius: 2.0}
  learning_rate: 0.5
  noise: {family: gaussian, multiplier: 4.0}
  batch_size: 100
budget: {epsilon: auto, delta: 1e-5, neighbouring: replace_one}
training: {epochs: 200}
release: {report: false}
"""


@pytest.fixture
def hidden(tmp_path: Path) -> Callable[..., Plan]:
    """The plan of a small run, with overrides."""
    generator = np.random.default_rng(5)
    labels = np.arange(RECORDS) % 2
    features = generator.standard_normal((RECORDS, FEATURES)).astype(np.float32) * 0.3
    features[:, 0] += labels - 0.5
    np.savez(tmp_path / "records.npz", features=features, labels=labels)
    recipe = tmp_path / "hidden.yaml"
    recipe.write_text(RECIPE % {"folder": tmp_path}, encoding="utf-8")
    return lambda *overrides: plan(read(recipe, overrides))
