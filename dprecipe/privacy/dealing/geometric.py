"""Sums of log-normal terms on grids of equal ratios.

For noise so small, or epochs so short, that a grid of equal distances would need too many points.

*Guarantees*: the law is larger than the true one in convex order. Every term is positive and no transform takes part,
so masses have small relative errors, however small they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import special

from dprecipe.privacy.dealing.epoch import EpochRatio, Kinds
from dprecipe.privacy.dealing.ratio import RatioLaw
from dprecipe.privacy.dealing.term import spread_term
from dprecipe.privacy.loss import Array, GridError

MAX_POINTS = 1 << 14
"""The most points of one law: a sum takes about as many operations, each on all of them."""
_LARGEST = 600.0
"""The largest |log x| of a grid, so that x stays within doubles."""


@dataclass(frozen=True, slots=True, eq=False)
class _Law:
    """Q-masses at 0 and at exp(step (first + k)); `beyond`: the part of the mean that is beyond the grid."""

    step: float
    zero: float
    first: int
    masses: Array
    beyond: float = 0.0

    @property
    def last(self) -> int:
        return self.first + len(self.masses) - 1

    @property
    def points(self) -> Array:
        points_K: Array = np.exp(self.step * np.arange(self.first, self.last + 1))
        return points_K


def sum_geometric(ratio: EpochRatio, step: float, tail: float) -> RatioLaw:
    """Returns the law of A, whose logarithm is known to about `step`.

    A sum of n terms is made of two sums of n/2. Relatively, its spread is √2 times smaller than theirs, so that at
    every second level the step is halved.

    Args:
        ratio: the epoch.
        step: the precision of log A.
        tail: mass that is moved at either end of a grid.

    Raises:
        GridError: too many points.
    """

    @cache
    def sum_of(kinds: Kinds, level: int) -> _Law:
        finer = step / 4 * 2.0 ** (level // 2)
        (mu, count), *more = kinds
        if count == 1 and not more:
            return _spread_term(mu, finer, tail)
        one, other = (sum_of(half, level + 1) for half in _halve(kinds))
        return _trim(_add(one, other, finer), tail)

    total = sum_of(ratio.kinds, 0)
    ratios = ratio.idle + ratio.weight * np.concatenate([[0.0], total.points])
    q_K = np.concatenate([[total.zero], total.masses])
    return RatioLaw(ratios, q_K, ratios * q_K, ratio.weight * total.beyond)


def _halve(kinds: Kinds) -> tuple[Kinds, Kinds]:
    """Returns the terms in two parts: by kind, or, if all are equal, half and half."""
    if len(kinds) > 1:
        return kinds[:1], kinds[1:]
    ((mu, count),) = kinds
    return ((mu, count // 2),), ((mu, count - count // 2),)


def _spread_term(mu: float, step: float, tail: float) -> _Law:
    """Returns the law of X = exp(μ z - μ²/2), each cell of it spread over its two ends so that its mean is kept."""
    z = -float(special.ndtri(tail))
    first, last = math.floor((-mu * z - mu * mu / 2) / step), math.ceil((mu * z + mu * mu / 2) / step)
    if last - first > MAX_POINTS or max(-first, last) * step > _LARGEST:
        raise GridError
    points_K = np.exp(step * np.arange(first, last + 1))
    masses, beyond = spread_term(points_K, mu)
    least = step * first / mu + mu / 2
    below, mean_below = float(special.ndtr(least)), float(special.ndtr(least - mu))
    at_first = min(below, mean_below / float(points_K[0]))
    masses[0] += at_first
    return _Law(step, below - at_first, first, masses, beyond)


def _add(one: _Law, other: _Law, step: float) -> _Law:
    """Returns the law of the sum of two independent variables on one grid, on the grid of `step`: theirs, or one twice
    as fine.

    exp(h i) + exp(h j) is exp(h i) times a number that depends on d = i - j >= 0 alone. So does its place between two
    points of the new grid, and how it is split over them.
    """
    first, last = min(one.first, other.first), max(one.last, other.last)
    size, finer = last - first + 1, round(one.step / step)
    factors = 1 + np.exp(-one.step * np.arange(size))
    places = np.floor(np.log(factors) / step).astype(np.int64)
    shares = np.clip((factors / np.exp(step * places) - 1) / math.expm1(step), 0.0, 1.0)
    least = int(places[-1])
    length = finer * (size - 1) + int(places[0]) - least + 2
    if length > MAX_POINTS:
        raise GridError
    p_K, q_K = _pad(one, first, size), _pad(other, first, size)
    sums = np.zeros(length)
    same = one is other
    for d, (place, share) in enumerate(zip((places - least).tolist(), shares.tolist(), strict=True)):
        mass = p_K[d:] * q_K[: size - d]
        if d > 0:
            mass = 2 * mass if same else mass + q_K[d:] * p_K[: size - d]
        upper = share * mass
        start, end = finer * d + place, finer * (size - 1) + place + 1
        sums[start:end:finer] += mass - upper
        sums[start + 1 : end + 1 : finer] += upper
    # A term that is 0 leaves the other; below the first point, that goes to 0 and to the first point, with its mean.
    alone = one.zero * q_K + other.zero * p_K
    below = finer * np.arange(size) - least
    moved = alone * np.exp(step * np.minimum(below, 0))
    np.add.at(sums, np.clip(below, 0, length - 1), moved)
    zero = one.zero * other.zero + float((alone - moved).sum())
    return _Law(step, zero, finer * first + least, sums, one.beyond + other.beyond)


def _pad(law: _Law, first: int, size: int) -> Array:
    padded = np.zeros(size)
    padded[law.first - first : law.last + 1 - first] = law.masses
    return padded


def _trim(law: _Law, tail: float) -> _Law:
    """Returns a shorter law: what is below goes to 0 and the first point, with its mean; what is above stays at the
    last point, and the rest of its mean goes beyond."""
    x_K = law.points
    below_K, above_K = np.cumsum(law.masses), np.cumsum((law.masses * x_K)[::-1])
    low = int(np.searchsorted(below_K, tail))
    high = len(x_K) - 1 - int(np.searchsorted(above_K, tail * float(above_K[-1])))
    if low >= high:
        return law
    kept = law.masses[low : high + 1].copy()
    at_low = float(law.masses[:low] @ x_K[:low]) / float(x_K[low])
    kept[0] += at_low
    kept[-1] += float(law.masses[high + 1 :].sum())
    zero = law.zero + max(0.0, float(law.masses[:low].sum()) - at_low)
    beyond = law.beyond + float(law.masses[high + 1 :] @ (x_K[high + 1 :] - x_K[high]))
    return _Law(law.step, zero, law.first + low, kept, beyond)
