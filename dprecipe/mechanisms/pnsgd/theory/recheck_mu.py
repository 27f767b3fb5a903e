"""Computes μ of one record if all steps are equal, for `recheck`: slopes of a greatest convex minorant, by the max-min
formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

STARTS = 24
"""Number of uses after which a distance of the whole diameter is tried; with thousands of stages, fewer."""


def compute_cycle_mu(shift: float, noise: float, log_c: float, batches: int, earlier_C: Ints, after_C: Ints) -> Array:
    """Returns μ of equal steps, (cases,): a record is used `earlier` times, `batches` steps apart, once more, and
    `after` steps follow. `shift` and `noise` are over the diameter; `log_c` is the logarithm of the contraction of a
    step.

    Guarantees: an upper bound. Source: Robertson, Wright & Dykstra 1988, Section 1.4 (max-min formula).
    """
    log_cycle = batches * log_c
    last = (shift * np.exp(after_C * log_c), sum_powers(2 * log_c, after_C + 1))

    def cycles(many_C: Ints) -> tuple[Array, Array]:
        """Returns the shift of `many` cycles before the last use, and their noise, as far as both are left at the
        end."""
        remaining_C = np.exp((after_C + batches) * log_c)
        noise_C = np.exp(2 * (after_C + 1) * log_c) * sum_powers(2 * log_c, many_C * batches)
        return shift * remaining_C * sum_powers(log_cycle, many_C), noise_C

    best_C = _min_cost([cycles(earlier_C), last])
    from_last_C = _min_cost([(np.exp(after_C * log_c), sum_powers(2 * log_c, after_C))])
    best_C = np.minimum(best_C, np.where(after_C > 0, from_last_C, math.inf))
    for count in spread_points(int(earlier_C.max(initial=0)), STARTS)[1:]:
        # from the whole diameter, `count` cycles before the last use: a lone stretch first
        quiet_C = np.exp(2 * (after_C + 1 + (count - 1) * batches) * log_c) * sum_powers(
            2 * log_c, np.full_like(after_C, batches - 1)
        )
        jump = (np.exp((after_C + count * batches) * log_c), quiet_C)
        cost_C = _min_cost([jump, cycles(np.full_like(after_C, count - 1)), last])
        best_C = np.where(earlier_C >= count, np.minimum(best_C, cost_C), best_C)
    return np.asarray(np.sqrt(best_C)) / noise


def _min_cost(blocks: Sequence[tuple[Array, Array]]) -> Array:
    """Returns Σ slope² x width of the minorant of some (rise, width), by the max-min formula: a slope is the largest,
    over what begins before it, of the least mean over what ends after it. All have noise or are empty, but for the
    first."""
    rises = np.cumsum([np.zeros_like(blocks[0][0]), *(rise for rise, _ in blocks)], axis=0)
    widths = np.cumsum([np.zeros_like(blocks[0][1]), *(width for _, width in blocks)], axis=0)
    total_C = np.zeros_like(blocks[0][0])

    def mean(start: int, end: int) -> Array:
        rise_C, width_C = rises[end] - rises[start], widths[end] - widths[start]
        return np.where(width_C > 0, rise_C / np.where(width_C > 0, width_C, 1.0), np.where(rise_C > 0, math.inf, 0.0))

    for index, (_, width_C) in enumerate(blocks):
        slope_C = np.max(
            [np.min([mean(u, v) for v in range(index + 1, len(blocks) + 1)], axis=0) for u in range(index + 1)], axis=0
        )
        total_C = total_C + np.square(np.where(width_C > 0, slope_C, 0.0)) * width_C
    return np.where((widths[-1] <= 0) & (rises[-1] > 0), math.inf, total_C)


def sum_powers(log_ratio: float | Array, terms: Ints | Array) -> Array:
    """Returns the geometric sum 1 + ratio + … with `terms` terms, for ratio <= 1."""
    log_ = np.asarray(log_ratio)
    ratio = np.where(log_ < 0, np.expm1(log_), -1.0)
    return np.asarray(np.where(log_ < 0, np.expm1(log_ * terms) / ratio, terms))


def spread_points(last: int, count: int) -> list[int]:
    """Returns integers from 0 to `last`: the first `count`, then at most `count` more at growing distances."""
    growing = (round(math.exp(x)) for x in np.linspace(0.0, math.log(last + 1), count))
    return sorted({*range(min(count, last + 1)), *(value - 1 for value in growing)})
