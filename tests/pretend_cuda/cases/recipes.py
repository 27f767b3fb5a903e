"""Parts of recipes that run on the device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.recipe_texts import DPSGD

IMAGES = """\
data:
  train: {source: idx, images: train-images.gz, labels: train-labels.gz}
  test: {source: idx, images: test-images.gz, labels: test-labels.gz, access: public}
  size: 120
"""
SMALL_DPSGD = DPSGD.replace("batch_size: 64", "batch_size: 48")
TRAINING = "training: {steps: 3, optimizer: {kind: sgd, lr: 0.5, momentum: 0.9}}\n"
CNN = IMAGES + "model: {kind: cnn, preset: tempered-mnist}\n" + SMALL_DPSGD + TRAINING
ENCODED = """\
model: {kind: mlp, hidden: [16]}
mechanism:
  kind: encoded
  codebook: {source: gaussian, size: 30, floor: 1e-5, norm: 0.5, seed: 0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
"""
CORRELATED = """\
model: {kind: mlp, hidden: [16]}
mechanism:
  kind: correlated
  clip: {norm: 0.5}
  noise: {form: previous_step, multiplier: auto}
  sampling: {scheme: fixed_order, batch_size: 480}
budget: {epsilon: 3.0, delta: 1e-5}
"""
BANDED = CORRELATED.replace("{form: previous_step, ", "{form: banded, bands: 3, ").replace(
    "{scheme: fixed_order, batch_size: 480}", "{scheme: cyclic_poisson, batch_size: 64}"
)
PATE = """\
model: {kind: mlp, hidden: [16]}
mechanism:
  kind: pate
  teachers:
    count: 6
    model: {kind: mlp, hidden: [8]}
    training: {steps: 5, batch_size: 16, optimizer: {kind: adam, lr: 0.01}}
  aggregator: {kind: gnmax, noise: {family: gaussian, multiplier: auto}}
  queries: {max: 20}
budget: {epsilon: 8.0, delta: 1e-5, neighbouring: zero_out_one}
training:
  steps: 10
  batch_size: 16
  optimizer: {kind: adam, lr: 0.01}
  semi_supervised: {kind: vat, radius: 1.0, entropy: 0.3, ramp: 0.3}
"""
Start = Callable[..., Path]
"""A recipe and its overrides are run on the device and verified; returns the release."""


def read_score(release: Path) -> dict[str, float]:
    """Return what the released model reaches on held-out records."""
    scores: dict[str, float] = json.loads((release / "metrics.json").read_text(encoding="utf-8"))["public_evaluation"]
    return scores
