"""The pair of a sum within a box: a product over millions of coordinates, on one grid.

One coordinate moved by τ is the pair of z(x-τ) against z(x). Its box is worst at the corner, so the whole release is
dominated by the product over the coordinates of the box (`curves` has the argument).

Reflection about τ/2 swaps the two densities, so every pair here is its own mirror image. Written as

    s(l) = p(l) exp(-l/2),   l the loss, p its mass under the shifted density,

it is symmetric, s(-l) = s(l); products of pairs are convolutions of s; and connecting the dots (`loss`), which keeps
both masses of a loss r between two points of a grid of step g, shares s between them like sinh(g-r)/2 and sinh(r/2):
on a grid it is a convolution as well, with the hat sinh((g-|r|)/2) / sinh(g/2).

1. Coordinates on a grid so fine that all their dots together add `_INFLATION` to the variance of the loss. Between
   two x with no turning point between them all losses lie between the losses at both.
2. Their product by its spectrum, at the few frequencies where it is not negligible. What the spectrum of a coordinate
   lacks of 1 is summed as such, so that its n-th power is as exact as itself; the rest of the frequencies is bounded
   by the mean square of the spectra (inequality of arithmetic and geometric means).
3. The hat, and back to losses on a coarse grid. The error is small compared with the largest mass; so this is repeated
   for masses tilted by exp(η l), which makes others the largest, and the smallest of the bounds is kept.
4. Shifts of very different sizes are handled in separate bands, each on its own fine grid, and convolved at the end.

Everything is rounded up: dots dominate, aliasing adds, errors are added, tails go to ±infinity by Chernoff's bound.

Axes: K different shifts, J losses of a grid above 0, F frequencies.

Source: Nasr, Shokri & Houmansadr 2020 (the mechanism); Doroshenko et al. 2022 (dots); Koskela, Jälkö & Honkela 2020
(FFT); the tilt is Esscher's.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np

from dprecipe.noise.distributions import Distribution
from dprecipe.privacy.box.box import BoxSum
from dprecipe.privacy.box.power import HALF_WIDTH, Power, fast_size
from dprecipe.privacy.loss import (
    LARGEST_LOSS,
    MAX_BINS,
    Array,
    GridError,
    Loss,
    LossPair,
    NoPairError,
    sample_loss,
    sample_loss_added,
)

_INFLATION = 3e-5
"""The share of the variance of the loss that the dots of the coordinates add; those of the product add less."""
_COARSE = 3e-3
"""The step of the product's grid over the standard deviation of its loss."""
_SPAN = 16.0
"""The largest ratio of two shifts in one band."""
_MAX_BANDS = 6
_FINEST = 1 << 23
"""The largest number of points of a fine grid: enough for 3e7 coordinates."""
_COARSEST = 5.0
"""The factor by which a fine grid may be coarser than it should be, for up to 1e9 coordinates."""
_MAX_VALUES = 1 << 24
_CONVOLVED = 1e8
"""About half the number of multiplications up to which a product is computed coordinate by coordinate."""
_TAILS = (1e-40, 1e-100, 1e-200)
"""The tails of the cached products: one product serves all calls with a larger tail."""


def box_pair(box: BoxSum, tail: float) -> Loss:
    """Returns the pair of the sum with the unit against the sum without it, without sampling; it is its own mirror
    image.

    Guarantees: dominates the true pair, with an ε at most 1e-4 (relative) larger, 1e-3 beyond 3e7 coordinates. At most
    max(`tail`, 1e-200) is charged to either infinity.

    Raises:
        NoPairError: exchanged codes, losses beyond what doubles can hold, or too many points.
    """
    if box.exchanged:
        raise NoPairError
    distribution = Distribution(box.family, box.shape)
    deepest = next((bucket for bucket in _TAILS if bucket <= tail), _TAILS[-1])
    step, half_N, charge = _product(distribution, box.shifts, box.noise_multiplier, deepest)
    losses_N = step * np.arange(len(half_N))
    above_N = charge + np.append(np.cumsum((half_N * np.exp(losses_N / 2))[:0:-1])[::-1], 0.0)
    last = int(np.argmax(above_N <= max(tail / 2, charge)))
    if losses_N[last] > LARGEST_LOSS:
        raise NoPairError
    losses_N = np.concatenate([-losses_N[last:0:-1], losses_N[: last + 1]])
    masses_N = np.concatenate([half_N[last:0:-1], half_N[: last + 1]]) * np.exp(losses_N / 2)
    charged = 2 * float(above_N[last])  # both ends: a mass without a counterpart costs most
    return Loss(step, -last, masses_N, charged, charged)


def box_losses(box: BoxSum, step: float, tail: float) -> LossPair:
    """Returns the losses of one step, sampled or not, when a unit is removed and when one is added, on the grid of
    `step`.

    Raises:
        GridError: too many points.
        NoPairError: as `box_pair`.
    """
    q, whole = box.sampling_rate, box_pair(box, tail)
    largest = float(whole.losses[-1])
    span = 2 * largest if q == 1 else math.log1p(q * math.expm1(largest)) - math.log1p(-q)
    if span > MAX_BINS * step:
        raise GridError
    return LossPair(sample_loss(whole, q, step), sample_loss_added(whole, q, step))


@lru_cache(maxsize=64)
def _product(
    distribution: Distribution, shifts: tuple[tuple[float, int], ...], noise_multiplier: float, tail: float
) -> tuple[float, Array, float]:
    """Returns the step of the grid, s at its losses from 0 up, and a bound of the mass above them."""
    with np.errstate(over="ignore"):
        bounds_K, counts_K = np.array([pair for pair in shifts if pair[0] > 0], dtype=np.float64).T
        taus_K = bounds_K / noise_multiplier
    if not (taus_K[-1] > 1e-100 and distribution.largest_loss(float(taus_K[-1])) < LARGEST_LOSS):
        raise NoPairError
    taus_K = np.maximum(taus_K, 1e-12 * taus_K[-1])  # larger shifts cost more
    means_K, spreads_K = _typical(distribution, taus_K)
    variance = float(counts_K @ spreads_K**2)
    if not (variance > 0 and float(counts_K @ means_K) < LARGEST_LOSS):
        raise NoPairError
    step = _COARSE * math.sqrt(variance)
    smallest = max(taus_K[-1] * _SPAN ** (1 - _MAX_BANDS), taus_K[0])
    band_K = np.floor(np.log(taus_K[-1] / np.maximum(taus_K, smallest)) / math.log(_SPAN)).astype(np.int64)
    bands = [np.flatnonzero(band_K == band) for band in np.unique(band_K)]
    fines = [_fine_step(spreads_K[here], counts_K[here], variance / len(bands)) for here in bands]
    whole, charge = np.ones(1), 0.0
    for here, fine in zip(bands, fines, strict=True):
        part, charged = _band(distribution, taus_K[here], counts_K[here], step, fine, tail / len(bands))
        whole, charge = np.convolve(whole, part), charge + charged
    half = whole[len(whole) // 2 :]
    half.flags.writeable = False
    return step, half, charge


def _typical(distribution: Distribution, taus_K: Array) -> tuple[Array, Array]:
    """Returns the approximate mean and standard deviation of each coordinate's loss, for the choice of grids."""
    edges_N = np.sinh(np.linspace(-6.0, 6.0, 257))
    masses_N = distribution.interval(edges_N[:-1], edges_N[1:])
    losses_KN = distribution.log_ratio((edges_N[:-1] + edges_N[1:]) / 2 + taus_K[:, None], taus_K[:, None])
    means_K = losses_KN @ masses_N
    return means_K, np.sqrt((losses_KN - means_K[:, None]) ** 2 @ masses_N)


def _fine_step(spreads_K: Array, counts_K: Array, others: float) -> float:
    """Returns the step of a grid for these coordinates: its dots may add a share of their own variance and of the
    total.

    A dot adds at most h²/6 on average to the variance of its loss, and at most h |l|.

    Raises:
        NoPairError: too fine.
    """
    number, variance = float(counts_K.sum()), float(counts_K @ spreads_K**2)
    allowed = _INFLATION * (0.9 * variance + 0.1 * others)
    fine = max(math.sqrt(6 * allowed / number), allowed / float(counts_K @ spreads_K))
    finest = 2 * HALF_WIDTH * math.sqrt(variance) / _FINEST
    if finest > _COARSEST * fine:
        raise NoPairError
    return max(fine, finest)


def _band(
    distribution: Distribution, taus_K: Array, counts_K: Array, step: float, fine: float, tail: float
) -> tuple[Array, float]:
    """Returns s of the product on the grid of `step`, both sides of 0, and the mass charged to either infinity."""
    number, steepest = float(counts_K.sum()), distribution.largest_loss(float(taus_K[-1]))
    if fine >= step and number * (number - 1) * (steepest / step + 1) ** 2 <= _CONVOLVED:
        whole = np.ones(1)
        for tau, count in zip(taus_K.tolist(), counts_K.tolist(), strict=True):
            half = _coordinate(distribution, tau, step)
            one = np.concatenate([half[:0:-1], half])
            for _ in range(int(count)):
                whole = np.convolve(whole, one)
        return whole, 0.0
    ratio = fast_size(math.ceil(step / fine))
    fine = step / ratio
    if len(taus_K) * steepest / fine > _MAX_VALUES:
        raise NoPairError
    halves = [_coordinate(distribution, tau, fine) for tau in taus_K.tolist()]
    s_KJ = np.zeros((len(halves), max(map(len, halves))))
    for row, half in zip(s_KJ, halves, strict=True):
        row[: len(half)] = half
    return Power(fine, s_KJ, counts_K).on_coarse(ratio, tail)


def _coordinate(distribution: Distribution, tau: float, step: float) -> Array:
    """Returns s of one coordinate at the losses 0, h, 2h, …

    Guarantees: dominates the pair; keeps both masses.
    """
    edges_N = _edges(distribution, tau, step)
    losses_N = distribution.log_ratio(edges_N, tau)
    p_N = distribution.interval(edges_N[:-1] - tau, edges_N[1:] - tau)
    q_N = distribution.interval(edges_N[:-1], edges_N[1:])
    low_N, high_N = np.minimum(losses_N[:-1], losses_N[1:]), np.maximum(losses_N[:-1], losses_N[1:])
    low_N = np.maximum(low_N, 0.0)
    distinct_N = high_N - low_N > 1e-7 * step
    across_N = 2 * np.sinh(np.where(distinct_N, high_N - low_N, 1.0) / 2)
    upper_N = np.where(
        distinct_N,
        (p_N * np.exp(-low_N / 2) - q_N * np.exp(low_N / 2)) / across_N,
        np.maximum(p_N * np.exp(-high_N / 2), q_N * np.exp(high_N / 2)),
    )
    upper_N = np.maximum(upper_N, 0.0)
    lower_N = np.maximum(p_N * np.exp(-low_N / 2) - upper_N * np.exp((high_N - low_N) / 2), 0.0)
    at_M = np.concatenate([low_N, high_N])
    s_M = np.concatenate([lower_N, upper_N])
    cell_M = np.floor(at_M / step)
    upper_share_M = np.clip(np.sinh((at_M - cell_M * step) / 2) / math.sinh(step / 2), 0.0, 1.0)
    lower_share_M = np.clip(np.sinh(((cell_M + 1) * step - at_M) / 2) / math.sinh(step / 2), 0.0, 1.0)
    index_M = cell_M.astype(np.int64)
    size = int(index_M.max()) + 2
    half = np.bincount(index_M, s_M * lower_share_M, size) + np.bincount(index_M + 1, s_M * upper_share_M, size)
    half[0] *= 2  # from both sides
    return half.astype(np.float64)


def _edges(distribution: Distribution, tau: float, step: float) -> Array:
    """Returns points x from τ/2 to infinity: those where the loss turns, and nearly those where it crosses the grid."""
    turns = [tau / 2, *(x for x in distribution.turning_points(tau) if x > tau / 2), math.inf]
    pieces = [np.array(turns)]
    for low, high in itertools.pairwise(turns):
        share_N = np.linspace(0.0, 1.0, 401)
        x_N = low + (high - low) * share_N if math.isfinite(high) else low + np.expm1(60 * share_N**2)
        for _ in range(2):  # the second pass starts from points that are already close
            l_N = distribution.log_ratio(x_N, tau)
            if l_N[-1] < l_N[0]:
                x_N, l_N = x_N[::-1], l_N[::-1]
            crossed_N = step * np.arange(math.floor(l_N[0] / step) + 1, math.ceil(l_N[-1] / step))
            x_N = np.concatenate([x_N[:1], np.interp(crossed_N, l_N, x_N), x_N[-1:]])
        pieces.append(x_N[1:-1])
    return np.unique(np.concatenate(pieces))
