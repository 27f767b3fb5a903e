"""Computations for `recheck`: δ of Gaussian and composed Laplace noise by dp-accounting, and μ if all steps are equal.

Many kinds of noise are rounded to a few. μ of one record comes from slopes of a greatest convex minorant, by the
max-min formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Uses = tuple[tuple[float, int], ...]
"""(noise multiplier, number of uses)."""

_LEVELS = 400
_NEAR_LEVELS, _FAR_LEVELS = 1.003, 1.05
"""Ratios of the values that μ is rounded up to if there are too many: of the 400 largest, and of others."""
MIN_DELTA = 1e-300
_FINE, _COARSE = 2e-3, 2e-2
"""Grid steps for Laplace losses, relative to the largest loss of one use: for up to a hundred uses, and for very
many."""
_MAX_USES = 10**5
_CLOSE_NOISE = 1.004
_COMPOSITIONS = 160
"""Approximate largest number of compositions of losses; thousands of uses count for several."""
MAX_EPSILON = 1e11


def log_theta(epsilon_: float | Array, reach: float | Array) -> Array:
    """Returns log δ at ε of two Gaussians with standard deviation 1 at distance `reach`; 0 at an infinite distance.

    Arguments are broadcast. A second implementation of `contraction.log_gaussian`, from normal distribution functions.
    """
    from scipy import special

    reach = np.clip(reach, 1e-150, 1e150)
    first = special.log_ndtr(reach / 2 - epsilon_ / reach)
    second = epsilon_ + special.log_ndtr(-reach / 2 - epsilon_ / reach)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = first + np.log1p(-np.exp(np.minimum(second - first, 0.0)))
    return np.asarray(np.where(np.isnan(log), -np.inf, log))


@lru_cache(maxsize=2048)
def _loss(mu: float) -> Any:
    from dp_accounting.pld import privacy_loss_mechanism as library

    return library.GaussianPrivacyLoss(1 / mu)


def gaussian_deltas(mu_C: Array, epsilon_: float) -> Array:
    """Returns δ at ε of Gaussians with these μ, (cells,), by dp-accounting.

    Guarantees: upper bounds. If there are more than 400 different μ, they are rounded up to fewer.
    """
    levels, level_C = np.unique(mu_C, return_inverse=True)
    if len(levels) > _LEVELS:
        with np.errstate(divide="ignore"):
            below_C = np.log(levels[-1] / np.maximum(mu_C, levels[-1] * 1e-6))
        near, far = math.log(_NEAR_LEVELS), math.log(_FAR_LEVELS)
        edge = _LEVELS * near
        rounded_C = np.where(
            below_C < edge, np.floor(below_C / near) * near, edge + np.floor((below_C - edge) / far) * far
        )
        levels, level_C = np.unique(levels[-1] * np.exp(-rounded_C), return_inverse=True)
    values = [_gaussian_delta(float(mu), epsilon_) for mu in levels]
    return np.array(values)[level_C]


def _gaussian_delta(mu: float, epsilon_: float) -> float:
    if mu < 1e-8:
        return 0.0 if epsilon_ > 0 else mu
    return float(_loss(mu).get_delta_for_epsilon(epsilon_)) if mu < 1e6 else 1.0


def merge_kinds(uses_C: Sequence[Uses]) -> tuple[list[Uses], NDArray[np.int64]]:
    """Returns kinds of Laplace noise, and the index of each cell's kind. Where there are many, multipliers are rounded
    down; where kinds would take too long to compose, the most similar are replaced by the worst of them, use by use."""
    rounded = {value: value for uses in uses_C for value, _ in uses}
    step = math.log(_CLOSE_NOISE)
    while len(set(rounded.values())) > (8 if step == math.log(_CLOSE_NOISE) else _COMPOSITIONS // 4):
        rounded = {value: math.exp(math.floor(math.log(value) / step) * step) for value in rounded}
        step *= 2
    merged: list[Uses] = []
    for uses in uses_C:
        counts: dict[float, int] = {}
        for value, count in uses:
            counts[rounded[value]] = counts.get(rounded[value], 0) + count
        merged.append(tuple(sorted(counts.items())))
    kinds = sorted(set(merged), key=lambda uses: (sum(count for _, count in uses), uses))
    work = max(len(uses) for uses in kinds) + min(sum(count for _, count in kinds[-1]), _MAX_USES) // 1000
    max_kinds = max(4, _COMPOSITIONS // work)
    size = -(-len(kinds) // max_kinds)
    groups: list[Uses] = []
    kind_of: dict[Uses, int] = {}
    for begin in range(0, len(kinds), size):
        group = kinds[begin : begin + size]
        kind_of |= dict.fromkeys(group, len(groups))
        groups.append(_worst(group))
    return groups, np.array([kind_of[uses] for uses in merged])


def _worst(kinds: Sequence[Uses]) -> Uses:
    """Returns uses that are at least as many and at most as noisy as each of these: the i-th least noisy use takes the
    least noise of all i-th ones."""
    ends = sorted({end for uses in kinds for end in np.cumsum([count for _, count in uses]).tolist()})
    result: dict[float, int] = {}
    for begin, end in pairwise([0, *ends]):
        values = [value for uses in kinds if (value := _at(uses, begin)) is not None]
        result[min(values)] = result.get(min(values), 0) + end - begin
    return tuple(sorted(result.items()))


def _at(uses: Uses, index: int) -> float | None:
    for value, count in uses:
        if index < count:
            return value
        index -= count
    return None


def compose_laplace(uses: Uses) -> Callable[[float], float]:
    """Returns the function δ(ε) of Laplace noise, composed; 1 where uses are too many, or the mean loss is beyond any
    ε."""
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.pld import privacy_loss_mechanism

    many = sum(count for _, count in uses)
    if many == 1:
        single: Callable[[float], float] = privacy_loss_mechanism.LaplacePrivacyLoss(uses[0][0]).get_delta_for_epsilon
        return single
    losses = [(1 / value, count) for value, count in uses]
    if many > _MAX_USES or math.fsum(n * (tau + math.expm1(-tau)) for tau, n in losses) > 2 * MAX_EPSILON:
        return lambda epsilon_: 1.0
    fine = min(max(_FINE * math.sqrt(many / 100), _FINE), _COARSE)
    step = max(fine * math.fsum(n * tau for tau, n in losses) / many, 1e-4 * max(tau for tau, _ in losses))
    composed: Any = None
    for value, count in uses:
        one = library.from_laplace_mechanism(value, value_discretization_interval=step)
        one = one.self_compose(count, 1e-15) if count > 1 else one
        composed = one if composed is None else composed.compose(one, 1e-15)
    largest = math.fsum(n * tau for tau, n in losses) * (1 + 1e-12)
    return lambda epsilon_: 0.0 if epsilon_ >= largest else float(composed.get_delta_for_epsilon(epsilon_))


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
