"""The starter recipes of DP-SGD: all but the name, for each source."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dprecipe.contract.starter import Measured, Task

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
UNKNOWN = (
    f"; of {MANY:,} and more, faster: {{scheme: poisson, batch_size: a twentieth of them}}, and epochs: 20 for steps"
)
RECORDS = 30
"""Records for each weight from which on more noise costs less than gradients that are cut: then the clip norm grows."""
EPSILON = 3.0
STEPS = 400
LOGIT_NOISE = 4.0
"""Standard deviation that noise may give a logit: with more, shorter steps and a smaller clip norm learn more."""
_REST = """\

mechanism:
  kind: dpsgd                # clip each unit's gradient, add noise to the sum, step
  clip: {{norm: {norm}}}          # the most one unit can move the sum
  noise: {{family: gaussian, multiplier: auto}}    # auto: solved, so that the run just fits the budget
  sampling: {sampling}

budget: {{epsilon: {epsilon}, delta: {delta}}}    # the most that may be spent; delta far below 1 / data.size

training:
  {length}
  optimizer: {optimizer}{weights}

runtime: {{device: auto, seed: 0}}       # nothing here can change what is spent
{release}
"""
_PASSES = {
    "norm": "1.0",
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
    return _REST.format(
        **steps,
        epsilon=task.choose_epsilon(EPSILON),
        delta=task.delta,
        release=task.release,
        weights=task.weights,
    )


def _sample(batch_size: int) -> dict[str, str]:
    return {"sampling": f"{{scheme: poisson, batch_size: {batch_size}}}   # units of one step, on average"}


def _is_number(task: Task) -> bool:
    return bool({"range", "count"} & set(task.label))


def _choose_steps(task: Task) -> dict[str, str]:
    """Chooses sampling, length, rate and clip norm by what is known without the private records (benchmarks/tables.py).

    A rate above 2/L diverges. L grows with the number of columns, and is four times larger for numbers.
    """
    chosen_for = ""
    if task.measured is None:
        norm, rate = 1.0, (1.0 if _is_number(task) else 16.0) / (1 + task.columns)
    else:
        norm, rate = _fit_steps(task, task.measured)
        if task.size is not None and not _is_number(task):
            norm, rate = _limit_noise(task, task.size, task.measured.norm, norm, rate)
            chosen_for = "    # for this epsilon: of a smaller one, draft again with --epsilon"
    chosen = {
        "norm": f"{_round(norm)}",
        "sampling": "{scheme: full_batch}             # all units in each step"
        + (UNKNOWN if task.size is None else ""),
        "length": f"steps: {STEPS}",
        "optimizer": f"{{kind: sgd, lr: {_round(rate)}}}{chosen_for}\n"
        "  average: {kind: tail, fraction: 0.5}    # of the iterates: less noise, at no price",
    }
    if task.size is not None and task.size >= MANY:
        chosen |= _sample(task.size // 20) | {"length": _PASSES["length"]}
    return chosen


def _fit_steps(task: Task, measured: Measured) -> tuple[float, float]:
    """Returns clip norm and rate for scaled features: at first, a gradient is as long as a record times its error.

    The norm is a little below what is usual. Of numbers with many records it is up to four times that, as far as noise
    allows: skewed labels have long errors, and cutting these moves the model away from the mean.
    """
    squared = measured.norm**2
    if not _is_number(task):
        return 0.7 * measured.norm, 2.0 / squared
    usual = max(0.8 * measured.deviation * measured.norm, 0.01)
    if "count" in task.label:
        return usual, 1.0 / (squared * max(1.0, measured.mean))
    records = (task.size or 0) / (RECORDS * (1 + measured.features))
    return usual * min(max(records, 0.8), 4.0), 1.0 / squared


def _limit_noise(task: Task, size: int, length: float, norm: float, rate: float) -> tuple[float, float]:
    """Returns clip norm and rate of classes, both smaller where few records and a small ε would drown them in noise.

    All steps together add noise of about steps · rate · norm · length / (size · μ) to the logit of a record, with the μ
    of Gaussian noise that has this ε and δ. The number of steps does not matter, only how far they go: noise of each
    grows with the root of their number. docs/project/accuracy.md says what shorter steps win.
    """
    tail, epsilon = math.log(1 / float(task.delta)), task.choose_epsilon(EPSILON)
    mu = 2 * epsilon / (math.sqrt(2 * tail) + math.sqrt(2 * (tail + epsilon)))  # of ε = μ²/2 + μ √(2 ln 1/δ)
    shorter = math.sqrt(min(1.0, LOGIT_NOISE * size * mu / (STEPS * rate * norm * length)))
    return shorter * norm, shorter * rate


def _round(value: float) -> float:
    return float(f"{value:.2g}")
