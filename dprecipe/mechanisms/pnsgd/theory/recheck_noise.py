"""Computes δ of Gaussian and of composed Laplace noise by dp-accounting, for `recheck`: many kinds are rounded to a
few."""

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
