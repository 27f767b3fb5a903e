"""Small recipes of all mechanisms, with all that they keep in `private/`."""

from __future__ import annotations

HEAD = """\
recipe: dprecipe/v1
name: chaos
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
  preprocess: [{clip_features: {norm: 1.0}}]
release: {report: %s}
runtime: {checkpoint_seconds: 0.01, device: cpu}
"""
DPSGD = """\
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: %s}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: %d, optimizer: {kind: sgd, lr: 1.0}}
"""
ENCODED = """\
model: {kind: logistic_regression}
mechanism:
  kind: encoded
  codebook: {source: gaussian, size: 5}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: 100, optimizer: {kind: sgd, lr: 1.0}}
"""
CORRELATED = """\
model: {kind: logistic_regression}
mechanism:
  kind: correlated
  clip: {norm: 1.0}
  noise: {form: %s, multiplier: auto}
  sampling: {scheme: %s}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: 96, optimizer: {kind: sgd, lr: 0.5}}
"""
PNSGD = """\
model: {kind: softmax_regression, l2: 0.01}
mechanism:
  kind: pnsgd
  constraint: {kind: ball, radius: 5.0}
  learning_rate: 0.5
  noise: {family: gaussian, multiplier: 4.0}
  batch_size: 720
  checkpoint: encrypted
  private_log: %s
budget: {epsilon: auto, delta: 1e-5, neighbouring: replace_one}
training: {epochs: 60}
"""
PATE = """\
recipe: dprecipe/v1
name: chaos
data:
  train: {source: digits, split: train, records: [0, 1000]}
  public: {source: digits, split: train, records: [1000, 1438]}
  test: {source: digits, split: test, access: public}
  size: 1000
model: {kind: logistic_regression}
mechanism:
  kind: pate
  teachers:
    count: 12
    model: {kind: logistic_regression}
    training: {steps: 20, batch_size: 16, optimizer: {kind: adam, lr: 0.03}}
  aggregator:
    kind: confident_gnmax
    noise: {family: gaussian, multiplier: 8}
    selection: {threshold: 6, noise: {family: gaussian, multiplier: 16}}
  queries: {max: 100}
  analysis: data_dependent
budget: {epsilon: auto, delta: 1e-5, neighbouring: zero_out_one}
training: {steps: 60, batch_size: 32, optimizer: {kind: adam, lr: 0.03}}
release: {report: %s, labels: true}
runtime: {device: cpu}
"""


def recipes(report: bool) -> dict[str, tuple[str, ...]]:
    """By mechanism."""
    said = str(report).lower()
    head = HEAD % said
    return {
        "dpsgd": (
            head + DPSGD % ("poisson, batch_size: 64", 100),
            head + DPSGD % ("dealt, batch_size: 128", 96),
        ),
        "encoded": (head + ENCODED,),
        "correlated": (
            head + CORRELATED % ("previous_step", "fixed_order, batch_size: 360"),
            head + CORRELATED % ("banded, bands: 4", "cyclic_poisson, batch_size: 64"),
        ),
        "pate": (PATE % said,),
        "pnsgd": (head + PNSGD % "true",),
    }
