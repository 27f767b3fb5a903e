"""Replacing a unit by dp-accounting's distributions: removing one and adding another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dprecipe.privacy.library_sums import Asked, compose_batches
from dprecipe.privacy.replacement import Curve, Directions, split_epsilon
from dprecipe.privacy.workload import Workload

_TOLERANCE = 2e-4
"""The share of ε up to which rounding may decide."""
_KNOTS, _ROUNDING, _LARGEST = 2001, 1e-15, 600.0
"""Points of a curve that is split over two steps, what rounding may add to its δ, and its largest ε."""


def double_epsilon(delta_of: Callable[[float], float], start: float, delta: float) -> float:
    """Returns ε of removing a unit and adding another: twice the smallest h >= 0 with (1 + exp(h)) δ(h) <= δ. `start`:
    the first h that is tried. Infinity above 600."""
    low, high = 0.0, start
    while high < 300 and not (1 + math.exp(high)) * delta_of(high) <= delta:
        low, high = high, 1.2 * high + 1e-6
    if not high < 300:
        return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if (1 + math.exp(middle)) * delta_of(middle) <= delta else (middle, high)
    return 2 * high


def epsilon_of_two_steps(
    questions: Asked, empty: Asked, work: Workload, delta: float, most: float, step: float
) -> tuple[str, float]:
    """Returns the accountant's name and ε of removing a unit and adding another by the best split, `most` if there is
    no smaller one. `empty`: the questions about a unit that contributes nothing, if one of both is such a unit, in any
    order. Where the rounding of the library's transforms decides, its name is that of no accountant."""
    if not most < _LARGEST:
        return "dp_accounting", most
    half, at = 0.0, delta
    for _ in range(4):  # what may be cut off depends on δ of one of the steps, which falls with its ε
        whole, *_ = compose_batches(questions, work.mu, work.neighbouring, at, step)
        half = min(most / 2, float(whole.get_epsilon_for_delta(at)))
        least = delta / (1 + math.exp(half))
        if least > at / 10 or at < _ROUNDING:
            break
        at = least
    other = compose_batches(empty, work.mu, work.neighbouring, at, step)[0] if empty != questions else whole
    return split_whole(whole, other, delta, half, most)


def split_whole(whole: Any, other: Any, delta: float, half: float, most: float = math.inf) -> tuple[str, float]:
    """Returns `epsilon_of_two_steps` from the library's distributions of one step and of the other, in any order;
    `half`: about ε of one of two equal steps."""
    most = min(most, double_epsilon(whole.get_delta_for_epsilon, half, delta))
    if not most < math.inf:
        return "dp_accounting", most
    value, more = (
        max(split_epsilon(*directions, delta, most) for directions in _list_directions(whole, other, most, error))
        for error in (0.0, _ROUNDING)
    )
    return ("dp_accounting.pld", value) if more < value * (1 + _TOLERANCE) else ("dp_accounting", more)


def _list_directions(whole: Any, other: Any, most: float, error: float) -> Iterator[tuple[Directions, Directions]]:
    """Yields the curves of the unit that is removed and of the one that is added, from ε = 0 to `most`, raised by
    `error`: either is `whole`, and the other `other`. Chords, straight in exp(ε), bound δ."""
    knots = np.linspace(0.0, most, _KNOTS)

    def curve(pmf: Any) -> Curve:
        dense = pmf.to_dense_pmf()  # its own vectorised δ is a loop over all points
        losses = dense._discretization * (dense._lower_loss + np.arange(dense.size))
        masses, losses = dense._probs[losses > 0], losses[losses > 0]
        above, weighted = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (masses, masses * np.exp(-losses)))
        at = np.searchsorted(losses, knots, side="right")
        deltas_K = np.maximum(above[at] - np.exp(knots) * weighted[at], 0.0) + dense._infinity_mass + error
        return lambda epsilon: float(np.interp(math.exp(epsilon), np.exp(knots), deltas_K))

    first, second = (
        (curve(one._pmf_remove), curve(one._pmf_add))
        for one in ((whole, other) if other is not whole else (whole,) * 2)
    )
    yield first, second
    if other is not whole:
        yield second, first
