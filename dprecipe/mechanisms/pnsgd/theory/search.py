"""Finds the smallest ε at a δ, for one decreasing function δ(ε) or for many at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

_CLOSE = 4e-7
"""Relative difference between the returned ε and the smallest."""
MIN_LOG = -690.0
"""Smallest logarithm of a positive δ."""


def find_epsilon(delta_of: Callable[[float], float], delta: float, high: float) -> float:
    """Returns the smallest ε with δ(ε) <= `delta`, up to `_CLOSE`, for a decreasing function; `high` is a first guess.

    Guarantees: δ(result) <= `delta`: the result is rounded up, never down.
    Edge cases: 0 if δ(0) <= `delta`; infinity if no ε up to 1e12 is large enough.
    Method: regula falsi (Illinois) in the square root of -log δ, where a Gaussian tail is a straight line.
    """
    at_zero = delta_of(0.0)
    if at_zero <= delta:
        return 0.0
    low, at_low, at_high = 0.0, _excess(at_zero, delta), _excess(delta_of(high), delta)
    while at_high > 0:
        low, at_low, high = high, at_high, 2 * max(high, 1e-6)
        if high > 1e12:
            return math.inf
        at_high = _excess(delta_of(high), delta)
    side = 0
    while high - low > _CLOSE * high:
        margin = _CLOSE * high / 3
        x = low + (high - low) * at_low / (at_low - at_high) + side * margin  # to the other side of the zero
        x = min(max(x, low + margin), high - margin)
        at_x = _excess(delta_of(x), delta)
        if at_x > 0:
            low, at_low, at_high, side = x, at_x, at_high / (2 if side > 0 else 1), 1
        else:
            high, at_high, at_low, side = x, at_x, at_low / (2 if side < 0 else 1), -1
    return high


def find_epsilons(compute_logs: Callable[[Array], Array], delta: float, count: int, high: float) -> Array:
    """Applies `find_epsilon` to `count` functions at once: `compute_logs` maps one ε each, (count,), to log δ,
    (count,).

    Guarantees and edge cases: as `find_epsilon`, for each function.
    """

    def excess(epsilon_F: Array) -> Array:
        result: Array = math.sqrt(-math.log(delta)) - np.sqrt(np.clip(-compute_logs(epsilon_F), 0.0, -2 * MIN_LOG))
        return result

    low_F, high_F, side_F = np.zeros(count), np.full(count, high), np.zeros(count)
    at_low_F, at_high_F = excess(low_F), excess(high_F)
    void_F = at_low_F <= 0
    while np.any(beyond_F := (at_high_F > 0) & ~void_F & (high_F <= 1e12)):
        low_F, at_low_F = np.where(beyond_F, high_F, low_F), np.where(beyond_F, at_high_F, at_low_F)
        high_F = np.where(beyond_F, 2 * np.maximum(high_F, 1e-6), high_F)
        at_high_F = excess(high_F)
    none_F = (at_high_F > 0) & ~void_F
    while np.any(open_F := (high_F - low_F > _CLOSE * high_F) & ~void_F & ~none_F):
        margin_F = _CLOSE * high_F / 3
        x_F = low_F + (high_F - low_F) * at_low_F / np.where(open_F, at_low_F - at_high_F, 1.0) + side_F * margin_F
        x_F = np.where(open_F, np.minimum(np.maximum(x_F, low_F + margin_F), high_F - margin_F), high_F)
        at_x_F = excess(x_F)
        above_F, below_F = open_F & (at_x_F > 0), open_F & ~(at_x_F > 0)
        at_high_F = np.where(above_F, at_high_F / np.where(side_F > 0, 2, 1), np.where(below_F, at_x_F, at_high_F))
        at_low_F = np.where(below_F, at_low_F / np.where(side_F < 0, 2, 1), np.where(above_F, at_x_F, at_low_F))
        low_F, high_F = np.where(above_F, x_F, low_F), np.where(below_F, x_F, high_F)
        side_F = np.where(above_F, 1.0, np.where(below_F, -1.0, side_F))
    return np.where(void_F, 0.0, np.where(none_F, np.inf, high_F))


def _excess(value: float, delta: float) -> float:
    """Returns a number with the sign of value - delta, in the scale in which a Gaussian tail is a line."""
    log_value = math.log(value) if value > 0 else 2 * MIN_LOG
    return math.sqrt(-math.log(delta)) - math.sqrt(max(-log_value, 0.0))
