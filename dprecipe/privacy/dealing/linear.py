"""Sums of log-normal terms by FFT, on a grid of equal distances.

*Guarantees*: the law is larger than the true one in convex order. Each term is split over two points that keep its
mean; terms beyond the grid are charged to infinity; a window's outside is bounded by Chernoff's inequality, and the
rounding of the transforms by Higham's.

Source: Higham 2002, Theorem 24.2 (transforms).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    least = min(mu for mu, _ in ratio.kinds)
    spread = min(1.0, math.sqrt(math.expm1(min(least, 1.0) ** 2)))
    distance = _DISTANCE * spread * max(1.0, math.sqrt(ratio.count) / 10)
    kinds = [_spread_kind(mu, count, distance, tail) for mu, count in ratio.kinds]
    low, high = _find_window(kinds, distance, tail)
    size = fft.next_fast_len(high - low + 1, real=True)
    if size > MAX_POINTS:
        raise GridError
    error = _bound_rounding(kinds, size, np.float64)
    exact: type[np.floating[Any]] = np.float64
    if error > tail and np.finfo(np.longdouble).eps < np.finfo(np.float64).eps:
        exact = np.longdouble
        error = _bound_rounding(kinds, size, exact)
    q_W, p_W = 1.0, ratio.idle  # the transforms of the sum's law under Q and under P, kind by kind
    for kind in kinds:
        one, biased = (fft.rfft(_wrap(law_K, size).astype(exact)) for law_K in (kind.masses, kind.biased))
        others = one ** (kind.count - 1)
        q_W, p_W = others * one * q_W, others * (one * p_W + ratio.weight * kind.count * biased * q_W)
    points = low + np.arange(size)
    q_N, p_N = (
        np.maximum(np.roll(fft.irfft(law_W, size), -(low % size)), 0).astype(np.float64) for law_W in (q_W, p_W)
    )
    return RatioLaw(
        ratio.idle + ratio.weight * distance * points,
        q_N,
        p_N,
        ratio.weight * sum(kind.count * kind.beyond for kind in kinds),
        error + 2 * tail,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """`count` equal terms: masses of one at 0, h, 2h, … under Q, and biased by its size; `beyond`: the part of its
    mean that is beyond the grid."""

    count: int
    masses: Array
    biased: Array
    beyond: float


def _spread_kind(mu: float, count: int, distance: float, tail: float) -> _Kind:
    points_K = _place_points(mu, distance, tail)
    p_K, beyond = spread_term(points_K, mu)
    return _Kind(count, p_K, points_K * p_K, beyond)


def _place_points(mu: float, distance: float, tail: float) -> Array:
    """Returns 0, h, 2h, …, beyond which P has `tail` of the mass of one term."""
    z = -float(special.ndtri(tail))
    farthest = mu * z + mu * mu / 2
    if farthest > math.log(MAX_POINTS * distance):
        raise GridError
    last = math.ceil(math.exp(farthest) / distance)
    points_K: Array = distance * np.arange(last + 1)
    return points_K


def _find_window(kinds: Sequence[_Kind], distance: float, tail: float) -> tuple[int, int]:
    """Returns the first and last point between which the sum lies, but for `tail` at either side, under Q and P."""
    need = -math.log(tail)
    mean = sum(kind.count * float(kind.biased.sum()) for kind in kinds)
    square = sum(kind.count * float((distance * np.arange(len(kind.biased))) @ kind.biased) for kind in kinds)
    low = max(0, math.floor((mean - math.sqrt(2 * need * square)) / distance))
    top = distance * (max(len(kind.masses) for kind in kinds) - 1)
    tilt_T = np.geomspace(1e-6, 600, 200) / max(top, 1.0)
    total_T, more_T = np.zeros(len(tilt_T)), np.zeros(len(tilt_T))
    for kind in kinds:
        ends = np.unique(np.geomspace(1, len(kind.masses), _ATOMS).astype(np.int64))
        starts = np.concatenate([[0], ends[:-1]])
        grown_TA = np.exp(tilt_T[:, None] * distance * (ends - 1))
        one_T = np.log(grown_TA @ np.add.reduceat(kind.masses, starts))
        biased_T = np.log(np.maximum(grown_TA @ np.add.reduceat(kind.biased, starts), 1e-300))
        total_T += kind.count * one_T
        more_T = np.maximum(more_T, biased_T - one_T)
    best = float(((total_T + more_T + need) / tilt_T).min())
    most = sum(kind.count * (len(kind.masses) - 1) for kind in kinds)
    return low, min(math.ceil(best / distance), most)


def _bound_rounding(kinds: Sequence[_Kind], size: int, exact: type[np.floating[Any]]) -> float:
    norm = max(float(np.linalg.norm(law_K)) for kind in kinds for law_K in (kind.masses, kind.biased))
    unit = float(np.finfo(exact).eps) / 2
    count = sum(kind.count for kind in kinds)
    return math.sqrt(size) * (count + 2) * 7 * unit * math.log2(size) * norm


def _wrap(masses_K: Array, size: int) -> Array:
    """Returns the masses at their points modulo `size`."""
    padded = np.zeros(-(-len(masses_K) // size) * size)
    padded[: len(masses_K)] = masses_K
    wrapped: Array = padded.reshape(-1, size).sum(axis=0)
    return wrapped
