"""The starter recipes of DP-SGD: all but the name, for each source."""

from __future__ import annotations

_MODEL = {
    "digits": "{kind: logistic_regression}",
    "idx": "{kind: cnn, preset: tempered-mnist}",
    "csv": "{kind: logistic_regression}",
    "parquet": "{kind: logistic_regression}",
    "json_lines": "{kind: logistic_regression}",
    "npz": "{kind: mlp, hidden: [32], activation: tanh}",
}

_REST = """\

mechanism:
  kind: dpsgd                # clip each record's gradient, add noise to the sum, step
  clip: {norm: 1.0}          # the most one record can move the sum
  noise: {family: gaussian, multiplier: auto}    # auto: solved, so that the run just fits the budget
  sampling: {scheme: poisson, batch_size: 256}   # records of one step, on average

budget: {epsilon: 3.0, delta: 1e-6}    # the most that may be spent; delta far below 1 / data.size

training:
  epochs: 20                 # passes over the data; or `steps`
  optimizer: {kind: sgd, lr: 1.0, momentum: 0.9}

runtime: {device: auto, seed: 0}       # nothing here can change what is spent
release: {report: true}
"""


def starter_text(source: str, data: str) -> str:
    """Returns a recipe without its name; `data` is the source's block."""
    return f"{data}\nmodel: {_MODEL[source]}\n{_REST}"
