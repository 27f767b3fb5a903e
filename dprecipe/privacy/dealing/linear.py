"""Sums of equal log-normal terms by FFT, on a grid of equal distances.

*Guarantees*: the law is larger than the true one in convex order. Each term is split over two points that keep its
mean; terms beyond the grid are charged to infinity; a window's outside is bounded by Chernoff's inequality, and the
rounding of the transforms by Higham's.

Source: Higham 2002, Theorem 24.2 (transforms).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import fft, special

from dprecipe.privacy.dealing.epoch import EpochRatio
from dprecipe.privacy.dealing.ratio import RatioLaw
from dprecipe.privacy.dealing.term import spread_term
from dprecipe.privacy.loss import Array, GridError

MAX_POINTS = 1 << 20
_DISTANCE = 0.003
_ATOMS = 600
"""The number of points by which the tail of a sum is bounded."""


def sum_linear(ratio: EpochRatio, tail: float) -> RatioLaw:
    """Returns the law of A, on a few hundred points or more within its standard deviation.

    Args:
        ratio: the epoch.
        tail: mass that may be charged to infinity, at each end and for rounding. If double precision may take more,
            extended precision is used.

    Raises:
        GridError: more than `MAX_POINTS` points.
    """
    spread = min(1.0, math.sqrt(math.expm1(min(ratio.mu, 1.0) ** 2)))
    distance = _DISTANCE * spread * max(1.0, math.sqrt(ratio.count) / 10)
    points_K = _place_points(ratio.mu, distance, tail)
    p_K, beyond = spread_term(points_K, ratio.mu)
    biased_K = points_K * p_K
    low, high = _find_window(p_K, biased_K, distance, ratio.count, tail)
    size = fft.next_fast_len(high - low + 1, real=True)
    if size > MAX_POINTS:
        raise GridError
    error = _bound_rounding(p_K, biased_K, size, ratio.count, np.float64)
    kind: type[np.floating[Any]] = np.float64
    if error > tail and np.finfo(np.longdouble).eps < np.finfo(np.float64).eps:
        kind = np.longdouble
        error = _bound_rounding(p_K, biased_K, size, ratio.count, kind)
    one, biased = (fft.rfft(_wrap(law_K, size).astype(kind)) for law_K in (p_K, biased_K))
    others = one ** (ratio.count - 1)
    q_N = fft.irfft(others * one, size)
    p_N = fft.irfft(others * (ratio.idle * one + ratio.weight * ratio.count * biased), size)
    points = low + np.arange(size)
    q_N, p_N = (np.maximum(np.roll(law_N, -(low % size)), 0).astype(np.float64) for law_N in (q_N, p_N))
    return RatioLaw(
        ratio.idle + ratio.weight * distance * points,
        q_N,
        p_N,
        ratio.weight * ratio.count * beyond,
        error + 2 * tail,
    )


def _place_points(mu: float, distance: float, tail: float) -> Array:
    """Returns 0, h, 2h, …, beyond which P has `tail` of the mass of one term."""
    z = -float(special.ndtri(tail))
    farthest = mu * z + mu * mu / 2
    if farthest > math.log(MAX_POINTS * distance):
        raise GridError
    last = math.ceil(math.exp(farthest) / distance)
    points_K: Array = distance * np.arange(last + 1)
    return points_K


def _find_window(p_K: Array, biased_K: Array, distance: float, count: int, tail: float) -> tuple[int, int]:
    """Returns the first and last point between which the sum lies, but for `tail` at either side, under Q and P."""
    need = -math.log(tail)
    mean, square = float(biased_K.sum()), float((distance * np.arange(len(p_K))) @ biased_K)
    low = max(0, math.floor((count * mean - math.sqrt(2 * need * count * square)) / distance))
    ends = np.unique(np.geomspace(1, len(p_K), _ATOMS).astype(np.int64))
    starts = np.concatenate([[0], ends[:-1]])
    q_A, b_A = np.add.reduceat(p_K, starts), np.add.reduceat(biased_K, starts)
    x_A = distance * (ends - 1)
    top, best = float(x_A[-1]), math.inf
    for tilt in np.geomspace(1e-6, 600, 200) / max(top, 1.0):
        grown_A = np.exp(tilt * x_A)
        one, biased = math.log(float(q_A @ grown_A)), math.log(max(float(b_A @ grown_A), 1e-300))
        best = min(best, (max(one, biased) + (count - 1) * one + need) / tilt)
    return low, min(math.ceil(best / distance), count * (len(p_K) - 1))


def _bound_rounding(p_K: Array, biased_K: Array, size: int, count: int, kind: type[np.floating[Any]]) -> float:
    norm = max(float(np.linalg.norm(p_K)), float(np.linalg.norm(biased_K)))
    unit = float(np.finfo(kind).eps) / 2
    return math.sqrt(size) * (count + 2) * 7 * unit * math.log2(size) * norm


def _wrap(masses_K: Array, size: int) -> Array:
    """Returns the masses at their points modulo `size`."""
    padded = np.zeros(-(-len(masses_K) // size) * size)
    padded[: len(masses_K)] = masses_K
    wrapped: Array = padded.reshape(-1, size).sum(axis=0)
    return wrapped
