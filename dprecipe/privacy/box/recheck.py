"""A noisy sum within a box, computed a second time for the cross-check; `curves` and `pairs` are not used.

The loss of one coordinate is computed by quadrature from densities written here; dp-accounting does the convolutions.
The result is an upper bound up to the quadrature error, about 1e-5 of ε.
"""

from __future__ import annotations

import heapq
import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.box.box import BoxSum

Array = NDArray[np.floating[Any]]

MAX_ORDER = 256
"""The largest order of `log_moments`."""
MAX_LOSS = 600.0
_SPACING = 0.015
"""The distance between nodes, over their distance from the nearer peak or 1, whichever is more."""
_FINE = 0.03
"""The step of a grid over the typical loss of a coordinate (and a tenth of that over the loss of all): its square over
6 is what dots add to the variance."""
_TAIL = 1e-20
_NOISE = 1e-19
"""The mass below which a value may be a rounding error of the FFT."""
_MAX_POINTS = 1 << 20
_TABLE = 200


def max_loss(box: BoxSum) -> float:
    """Returns the largest loss of any outcome: with Laplace noise at most the L1 norm over the scale, and less with
    sampling."""
    if box.family != "laplace":
        return math.inf
    whole = sum(bound * count for bound, count in box.shifts) / box.noise_multiplier
    if box.sampling_rate < 1:
        whole = np.logaddexp(math.log1p(-box.sampling_rate), math.log(box.sampling_rate) + whole)
    return float(whole)


def estimate_effort(box: BoxSum) -> float:
    """Returns the rough cost of computing the loss distribution, in units of 1/20,000 of a second."""
    return (len(box.shifts) + 200) * math.sqrt(box.dimension)


def is_mild(box: BoxSum) -> bool:
    """Returns True if exp(-loss) stays within the range of doubles: for each coordinate, and roughly for all
    together."""
    largest = total = 0.0
    for bound, count in box.shifts:
        _, p_N, losses_N = _nodes(box, bound / box.noise_multiplier, 16 * _SPACING)
        largest, total = max(largest, float(losses_N.max())), total + count * float(p_N @ losses_N)
    return largest < MAX_LOSS and total < MAX_LOSS / 2


@lru_cache(maxsize=8)
def product_masses(box: BoxSum) -> tuple[float, Array] | None:
    """Returns the step of a grid, and the masses of the unsampled sum's loss at 0, h, 2h, …; the rest is their mirror
    image.

    None if one coordinate is so much larger than most that the grid would need too many points.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    shifts = [(bound / box.noise_multiplier, count) for bound, count in box.shifts if bound > 0]
    variance = 0.0
    for tau, count in shifts:
        _, p_N, losses_N = _nodes(box, tau, 4 * _SPACING)
        variance += count * float(p_N @ losses_N**2 - (p_N @ losses_N) ** 2)
    step = min(_FINE / math.sqrt(sum(count for _, count in shifts)), _FINE / 10) * math.sqrt(variance)
    _, _, largest_N = _nodes(box, shifts[-1][0], 4 * _SPACING)
    if float(np.abs(largest_N).max()) > _MAX_POINTS * step:
        return None
    queue: list[tuple[int, int, Any]] = []
    for index, (tau, count) in enumerate(shifts):
        _, p_N, losses_N = _nodes(box, tau, _SPACING)
        power = DensePLDPmf(step, *_dots(losses_N, p_N, step), 0.0, True).self_compose(count, _TAIL)
        heapq.heappush(queue, (power.size, index, power))
    while len(queue) > 1:  # the shortest first
        (_, index, one), (_, _, other) = heapq.heappop(queue), heapq.heappop(queue)
        both = one.compose(other, _TAIL)
        heapq.heappush(queue, (both.size, index, both))
    whole, k_K = queue[0][2], np.arange(2, MAX_ORDER + 1)
    reach = float(np.min((log_moments(box) - math.log(_NOISE)) / (k_K - 1)))  # Chernoff: no mass lies beyond
    upper = whole._probs[-whole._lower_loss :][: math.ceil(reach / step) + 1]
    return step, np.where(upper > _NOISE, upper, 0.0)


def sampled_pair(own: float, masses: Array, q: float, step: float) -> tuple[Any, Any]:
    """Returns the Poisson-sampled pair of (P, Q), that is (1-q) Q + q P against Q, and its reverse, on a new grid."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    points = np.flatnonzero(masses)
    w, upper = own * points, masses[points]
    lower = upper * np.exp(-w)
    p, q_masses, w = np.append(upper, lower[w > 0]), np.append(lower, upper[w > 0]), np.append(w, -w[w > 0])
    losses = np.log1p(q * np.expm1(w)) if q < 1 else w
    removed = _dots(losses, q * p + (1 - q) * q_masses, step)
    added = _dots(-losses, q_masses, step)
    return DensePLDPmf(step, *removed, 0.0, True), DensePLDPmf(step, *added, 0.0, True)


@lru_cache(maxsize=8)
def log_moments(box: BoxSum) -> Array:
    """Returns S_k = Σ log M_k(τ), k = 2 … `MAX_ORDER`, from a table over τ.

    Exchanged vectors move a coordinate by the sum of two numbers, each half of some shift, in two different orders. For
    a convex function above log M_k the sum is largest where the two orders agree.
    """
    bounds, counts = np.array([shift for shift in box.shifts if shift[0] > 0]).T
    taus, k_K = bounds / box.noise_multiplier, np.arange(2, MAX_ORDER + 1)
    table = np.geomspace(0.9 * taus[0], taus[-1], _TABLE)
    logs = np.empty((_TABLE, len(k_K)))
    for row, tau in zip(logs, table.tolist(), strict=True):
        log_q_N, _, losses_N = _nodes(box, tau, 4 * _SPACING)
        exponents_KN = log_q_N + np.multiply.outer(k_K, losses_N)
        top_K = exponents_KN.max(axis=1)
        row[:] = np.log(np.exp(exponents_KN - top_K[:, None]).sum(axis=1)) + top_K
    if box.exchanged:
        gaps = np.diff(table, prepend=0.0)[:, None]
        slopes = np.maximum.accumulate(np.diff(logs, axis=0, prepend=0.0) / gaps, axis=0)
        majorants = np.cumsum(slopes * gaps, axis=0)
        sums = [counts @ np.interp(taus, np.append(0.0, table), np.append(0.0, of)) for of in majorants.T]
    else:
        weights, at, known = counts * taus**2, np.log(taus), np.log(table)
        sums = [weights @ np.interp(at, known, of / table**2) for of in logs.T]
    return np.maximum(sums, 1e-300)


def _nodes(box: BoxSum, tau: float, spacing: float) -> tuple[Array, Array, Array]:
    """Returns the logs of Q-masses and P-masses, and the losses, of one coordinate at nodes around both peaks, -τ/2 of
    Q and τ/2 of P.

    The two sides are exact mirror images, so that small losses have no relative error.
    """
    away = np.sinh(np.arange(0.0, 40.0 if box.family in ("student_t", "cauchy") else 6.0, spacing))
    around = np.append(-away[:0:-1], away)
    between = tau / 2 * np.arange(-15, 16) / 16
    u_N = np.unique(np.concatenate([around - tau / 2, between, around + tau / 2]))
    log_q_N, log_p_N = _log_density(box, u_N + tau / 2), _log_density(box, u_N - tau / 2)
    log_widths_N = np.log(np.gradient(u_N))
    log_p_masses_N = log_widths_N + log_p_N
    total = np.logaddexp.reduce(log_p_masses_N)
    return log_widths_N + log_q_N - total, np.exp(log_p_masses_N - total), log_p_N - log_q_N


def _log_density(box: BoxSum, x_N: Array) -> Array:
    """Returns the logarithm of the noise density of scale 1, up to a constant."""
    u_N, shape = np.abs(x_N), box.shape or 1.0
    if box.family in ("student_t", "cauchy"):
        return -(shape + 1) / 2 * np.log1p(u_N * u_N / shape)
    if box.family == "sech":
        return -np.logaddexp(u_N, -u_N)
    n = int(shape) - 1  # of n + 1 Laplace variables: a Bessel function of order n + 1/2
    powers = [math.comb(n + k, n) * math.perm(n, k) / 2.0**k * u_N ** (n - k) for k in range(n + 1)]
    return np.asarray(np.log(np.sum(powers, axis=0)) - u_N)


def _dots(losses: Array, masses: Array, step: float) -> tuple[int, Array]:
    """Returns the first point of a grid, and the masses shared between the two nearest points so that P-mass and Q-mass
    are kept."""
    cells = np.floor(losses / step).astype(np.int64)
    upper = masses * np.clip(np.expm1(cells * step - losses) / math.expm1(-step), 0.0, 1.0)
    first, size = int(cells.min()), int(cells.max() - cells.min()) + 2
    grid = np.bincount(cells - first, masses - upper, size) + np.bincount(cells - first + 1, upper, size)
    return first, grid.astype(np.float64)
