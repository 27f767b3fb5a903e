"""Starter recipes of projected noisy SGD: everything but the name, for each source."""

from __future__ import annotations

from dprecipe.contract.starter import Task

_CLIP = "    - clip_features: {norm: 1.0}    # shorten each record's features to at most this norm\n"
_PREPROCESS = "  preprocess:\n"

_CHOICES = {
    # model, radius, η, records of a step, passes, ε
    "digits": ("{kind: softmax_regression, bias: false}", "20.0", "1.0", 144, 40, 4.0),
    "idx": ("{kind: softmax_regression, bias: false}", "20.0", "1.0", 512, 10, 3.0),
    "csv": ("{kind: logistic_regression}", "10.0", "2.0", 100, 10, 3.0),
    "parquet": ("{kind: logistic_regression}", "10.0", "2.0", 100, 10, 3.0),
    "json_lines": ("{kind: logistic_regression}", "10.0", "2.0", 100, 10, 3.0),
    "npz": ("{kind: logistic_regression}", "10.0", "2.0", 100, 10, 3.0),
}


def starter_text(source: str, data: str, task: Task) -> str:
    """Returns a recipe without its name. Adds a bound on the features to `data`, the source's block."""
    data = data.replace(
        "# or {column: user_id, max_records: 8}: all records of a user", "# who is protected: one record"
    )
    if "clip_features" not in data:
        data += _CLIP if _PREPROCESS in data else _PREPROCESS + _CLIP
    model, radius, rate, batch, passes, epsilon = _CHOICES[source]
    return f"""\
{data}
model: {model}    # a convex model: the bounds hold for no neural network

mechanism:
  kind: pnsgd                # noisy steps, projected on a ball; only the last iterate is released
  constraint: {{kind: ball, radius: {radius}}}       # largest L2 norm of all weights
  learning_rate: {rate:<12}# of a step; below 2/β (`dprecipe plan` shows β)
  noise: {{family: gaussian, multiplier: auto}}    # auto: solved, so that the run just fits the budget
  batch_size: {batch:<15}# records of one step
  order: permuted            # one random order for all passes; or sequential: a guarantee for each position

# The budget; delta far below 1 / data.size. Replacing a record leaves all others at their positions.
budget: {{epsilon: {task.choose_epsilon(epsilon)}, delta: {task.delta}, neighbouring: replace_one}}

training:
  epochs: {passes:<19}# passes over the data; or `steps`

runtime: {{device: auto, seed: 0}}       # nothing here changes the privacy cost
{task.release}
"""
