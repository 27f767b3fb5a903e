"""The starter recipes of correlated noise: all but the name, for each source."""

from __future__ import annotations

from dprecipe.contract.starter import Task

_MODEL = {
    "digits": "{kind: logistic_regression}",
    "idx": "{kind: cnn, preset: tempered-mnist}",
    "csv": "{kind: logistic_regression}",
    "parquet": "{kind: logistic_regression}",
    "json_lines": "{kind: logistic_regression}",
    "npz": "{kind: mlp, hidden: [32], activation: tanh}",
}


def starter_text(source: str, data: str, task: Task) -> str:
    """Returns a recipe without its name; `data` is the source's block."""
    is_number = bool({"range", "count"} & set(task.label))
    model = "{kind: linear}" if is_number else "{kind: logistic_regression}" if task.columns else _MODEL[source]
    rate = 0.25 if not task.columns else float(f"{(0.25 if is_number else 4.0) / (1 + task.columns):.2g}")
    epsilon = task.choose_epsilon(3.0)
    return f"""\
{data}
model: {model}

mechanism:
  kind: correlated           # each step takes back part of the noise of the step before
  clip: {{norm: 1.0}}          # the most one unit can move the sum
  noise: {{form: previous_step, multiplier: auto}}    # auto: solved, so that the run just fits the budget
  sampling: {{scheme: fixed_order, batch_size: {task.choose_batch_size(256)}}}   # each unit in one step of a pass

budget: {{epsilon: {epsilon}, delta: {task.delta}}}    # the most that may be spent; delta far below 1 / data.size

training:
  epochs: 20                 # whole passes over the data
  optimizer: {{kind: sgd, lr: {rate}, momentum: 0.9}}    # a rate of DP-SGD is often too large here{task.weights}

runtime: {{device: auto, seed: 0}}       # nothing here can change what is spent
{task.release}
"""
