"""The starter recipes of DP-SGD: all but the name, for each source."""

from __future__ import annotations

from collections.abc import Mapping

from dprecipe.contract.starter import Task

_MODEL = {
    "digits": "{kind: logistic_regression}",
    "idx": "{kind: cnn, preset: tempered-mnist}",
    "csv": "{kind: logistic_regression}",
    "parquet": "{kind: logistic_regression}",
    "json_lines": "{kind: logistic_regression}",
    "npz": "{kind: mlp, hidden: [32], activation: tanh}",
}
MANY = 10_000
"""Fewer records than this all join in each step: without sampling, they need no more noise for the same accuracy."""
_REST = """\

mechanism:
  kind: dpsgd                # clip each unit's gradient, add noise to the sum, step
  clip: {{norm: 1.0}}          # the most one unit can move the sum
  noise: {{family: gaussian, multiplier: auto}}    # auto: solved, so that the run just fits the budget
  sampling: {sampling}

budget: {{epsilon: 3.0, delta: {delta}}}    # the most that may be spent; delta far below 1 / data.size

training:
  {length}
  optimizer: {optimizer}

runtime: {{device: auto, seed: 0}}       # nothing here can change what is spent
{release}
"""
_PASSES = {
    "length": "epochs: 20                 # passes over the data; or `steps`",
    "optimizer": "{kind: sgd, lr: 1.0, momentum: 0.9}",
}


def starter_text(source: str, data: str, task: Task) -> str:
    """Returns a recipe without its name; `data` is the source's block."""
    if not task.columns:
        model = "{kind: linear}" if _is_number(task) else _MODEL[source]
        return f"{data}\nmodel: {model}\n{_write_rest(task, _PASSES | _sample(task.choose_batch_size(256)))}"
    model = "{kind: linear}" if _is_number(task) else "{kind: logistic_regression}"
    if not task.label:
        model += "    # of a number or a count: linear, and lr a sixteenth"
    return f"{data}\nmodel: {model}\n{_write_rest(task, _choose_steps(task))}"


def _write_rest(task: Task, steps: Mapping[str, str]) -> str:
    return _REST.format(**steps, delta=task.delta, release=task.release)


def _sample(batch_size: int) -> dict[str, str]:
    return {"sampling": f"{{scheme: poisson, batch_size: {batch_size}}}   # units of one step, on average"}


def _is_number(task: Task) -> bool:
    return bool({"range", "count"} & set(task.label))


def _choose_steps(task: Task) -> dict[str, str]:
    """Chooses sampling, length and rate by what the recipe declares alone, measured on public tables
    (benchmarks/tables.py).

    A rate above 2/L diverges, where L grows with the number of columns, and is four times larger for numbers.
    """
    rate = (1.0 if _is_number(task) else 16.0) / (1 + task.columns)
    chosen = {
        "sampling": "{scheme: full_batch}             # all units in each step",
        "length": "steps: 400",
        "optimizer": f"{{kind: sgd, lr: {float(f'{rate:.2g}')}}}\n"
        "  average: {kind: tail, fraction: 0.5}    # of the iterates: less noise, at no price",
    }
    if task.size is not None and task.size >= MANY:
        chosen |= _sample(task.size // 20) | {"length": _PASSES["length"]}
    return chosen
