"""Rényi curves of a sum within a box: noise of any distribution added to a vector that is bounded coordinate by
coordinate.

The corner of the box is its worst case. For a density z that is symmetric and falls with distance from 0, both
M_k(τ) and every hockey-stick divergence between z and z shifted by τ grow with |τ|; so (Blackwell) the pair of the
larger shifts dominates that of the smaller ones, in every product and after sampling. Only a permutation of the
coordinates depends on the unit, and noise of one distribution and scale does not see it.

Lemma 4, with S_k = Σ_j log M_k(b_j/s), b the box, s the scale, q the sampling rate:

    r(α) = log(1 + Σ_{k=2}^α C(α,k) (1-q)^(α-k) q^k (exp(S_k) - 1)) / (α-1),   integer α >= 2.

This is the divergence when the unit is removed. When it is added, the divergence is smaller, because reflecting the
noise about half the shift swaps the two densities. Between whole orders, r(α) is interpolated: (α-1) r(α) is convex,
and 0 at α = 1. Several codewords cost the largest of their curves (Lemma 5), or that of their envelope; the curves of
steps with different distributions add up, even if these are chosen in view of earlier results (Theorem 1).

Source: Nasr, Shokri & Houmansadr 2020, Lemmas 4 and 5, Theorem 1, with proofs repaired in docs/explanation/encoding.md;
Wang, Balle & Kasiviswanathan 2019, Corollary 10 (interpolation).

`log_moments` gives M_k(τ) = ∫ z(x-τ)^k z(x)^(1-k) dx of one shifted coordinate. M_0 = M_1 = 1, and M_k grows with τ. No
terms cancel: with y = z(x-τ)/z(x) and A_j = ∫ z (y-1)² y^j dx, whose integrands are positive,

    M_k - 1 = ∫ z (y^k - 1 - k(y-1)) dx = Σ_{j=0}^{k-2} (k-1-j) A_j.

Notation: z density of scale 1, τ shift in units of the scale.
Axes: T shifts, K moments k = 2, 3, …, A orders, I points of a grid, N nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dprecipe.noise.distributions import Distribution
from dprecipe.privacy.box.box import BoxSum, Shifts

Array = NDArray[np.float64]

MAX_ORDER = 256
MARGIN = 1e-12
"""A relative error that no value of `log_moments` reaches: the largest measured is 7e-14, compared with 30 digits and
finer rules, for df from 0.5 to 1000, λ to 8, τ from 1e-6 to 30."""

_FEWEST_NODES, _MAX_NODES = 32, 4096
_AGREEMENT = 1e-7
"""The relative difference below which two rules agree; they converge exponentially: halving the step squares the
error."""
_STEEPEST = 200.0
"""The largest log y for which no factor of an integrand leaves the range of floating-point numbers."""
_TAIL = 42.0
"""An exponent: each integral leaves out a share exp(-`_TAIL`) of itself."""
_IN_CACHE = 1 << 15


def log_moments(distribution: Distribution, taus_T: Array) -> Array:
    """Returns log M_k(τ) for each τ >= 0 and k = 2..`MAX_ORDER`: (T, K).

    Closed forms for gaussian and laplace. The others by the trapezoidal rule, after a change of variable that makes it
    converge exponentially, with as many nodes as two rules need to agree. Shifts so large that these would be too many
    (from 4 to 30 scales on, by the distribution, where one coordinate alone spends any budget) are bounded by
    D_k <= D_∞, that is log M_k <= (k-1) sup |log y|.

    Guarantees: relative error below `MARGIN`, or an upper bound.
    Source: closed forms: Mironov 2017, Table II; the rule: Trefethen & Weideman 2014.
    """
    orders_K = np.arange(2.0, MAX_ORDER + 1)
    with np.errstate(over="ignore"):  # infinity is a bound
        if distribution.family == "gaussian":
            logs_TK = orders_K * (orders_K - 1) / 2 * taus_T[:, None] ** 2
        elif distribution.family == "laplace" or (distribution.family == "variance_gamma" and distribution.shape == 1):
            logs_TK = _laplace(taus_T[:, None], orders_K)
        else:
            logs_TK = _by_quadrature(distribution, np.maximum(taus_T, 1e-100))  # squares of less are zero
    logs_TK[taus_T == 0] = 0.0
    return logs_TK


def _laplace(tau_T1: Array, k_K: Array) -> Array:
    """Returns log M_k with M_k = (k e^((k-1)τ) + (k-1) e^(-kτ)) / (2k-1); the linear terms of both exponents cancel,
    and are left out."""
    mild_TK = np.minimum(tau_T1, 1 / k_K)
    excess_TK = (k_K * _beyond_linear((k_K - 1) * mild_TK) + (k_K - 1) * _beyond_linear(-k_K * mild_TK)) / (2 * k_K - 1)
    steep_TK = (k_K - 1) * tau_T1 + np.log((k_K + (k_K - 1) * np.exp(-(2 * k_K - 1) * tau_T1)) / (2 * k_K - 1))
    logs_TK: Array = np.where(tau_T1 * k_K <= 1, np.log1p(excess_TK), steep_TK)
    return logs_TK


def _beyond_linear(t: Array) -> Array:
    """Returns exp(t) - 1 - t by its series, |t| <= 1."""
    total = np.ones_like(t)
    for n in range(20, 2, -1):
        total = 1 + total * t / n
    return total * t * t / 2


def _by_quadrature(distribution: Distribution, taus_T: Array) -> Array:
    steepest_T = np.array([distribution.largest_loss(tau) for tau in taus_T.tolist()])
    bounds_TK: Array = np.arange(1, MAX_ORDER) * steepest_T[:, None]
    todo_T = np.flatnonzero(steepest_T <= _STEEPEST)
    nodes = _FEWEST_NODES
    sums_TJ = _power_sums(distribution, taus_T[todo_T], steepest_T[todo_T], np.arange(nodes) / nodes)
    while len(todo_T) and nodes < _MAX_NODES:
        between_TJ = _power_sums(distribution, taus_T[todo_T], steepest_T[todo_T], (np.arange(nodes) + 0.5) / nodes)
        done_T = (np.abs(between_TJ - sums_TJ) < _AGREEMENT * sums_TJ).all(axis=1)
        sums_TJ, nodes = (sums_TJ + between_TJ) / 2, 2 * nodes
        bounds_TK[todo_T[done_T]] = _of_power_sums(sums_TJ[done_T], steepest_T[todo_T[done_T]])
        todo_T, sums_TJ = todo_T[~done_T], sums_TJ[~done_T]
    return bounds_TK


def _of_power_sums(sums_TJ: Array, steepest_T: Array) -> Array:
    """Returns log(1 + Σ (k-1-j) A_j): sums of sums, in the log domain."""
    logs_TJ = np.log(sums_TJ) + np.arange(MAX_ORDER - 1) * steepest_T[:, None]
    excess_TK = np.logaddexp.accumulate(np.logaddexp.accumulate(logs_TJ, axis=1), axis=1)
    logs_TK: Array = np.logaddexp(0.0, excess_TK)
    return logs_TK


def _power_sums(distribution: Distribution, taus_T: Array, steepest_T: Array, at_N: Array) -> Array:
    """Returns A_j / sup(y)^j for j = 0..`MAX_ORDER` - 2, by the rule with equal weights at these nodes of [0, 1]: (T,
    J)."""
    sums_TJ = np.empty((len(taus_T), MAX_ORDER - 1))
    rows = max(1, _IN_CACHE // (len(at_N) * (3 if distribution.family == "variance_gamma" else 1)))
    for start in range(0, len(taus_T), rows):
        here = slice(start, start + rows)
        tau_T1 = taus_T[here, None]
        x_TN, weight_TN = (
            _smooth(distribution, tau_T1, at_N)
            if distribution.family != "variance_gamma"
            else _kinked(distribution, tau_T1, at_N)
        )
        log_y_TN = distribution.log_ratio(x_TN, tau_T1)
        term_TN = weight_TN * np.exp(distribution.log_density(x_TN)) * np.expm1(log_y_TN) ** 2
        y_TN = np.exp(log_y_TN - steepest_T[here, None])
        for j in range(MAX_ORDER - 1):
            sums_TJ[here, j] = term_TN.sum(axis=1)
            term_TN *= y_TN
    return sums_TJ


def _smooth(distribution: Distribution, tau_T1: Array, at_N: Array) -> tuple[Array, Array]:
    """Returns nodes x and weights for an integrand that is analytic around the line.

    x = c sinh(sinh w) for power tails, c sinh(w) for exponential ones, so that the integrand falls doubly
    exponentially in w; the range ends where it is negligible beside what it is at the last extremum of y.
    """
    if distribution.family == "sech":
        scale = math.pi / 2  # the distance of the poles
        width_T1 = np.arcsinh((_TAIL + tau_T1) / scale)
        w_TN = width_T1 * (2 * at_N - 1)
        x_TN, slope_TN = scale * np.sinh(w_TN), scale * np.cosh(w_TN)
    else:
        df = distribution.shape or 1.0
        scale = math.sqrt(df)
        last_T1 = np.array([[distribution.turning_points(tau)[1] / scale] for tau in tau_T1[:, 0].tolist()])
        width_T1 = np.arcsinh(np.arccosh(np.hypot(1.0, last_T1) * math.exp(_TAIL / (df + 2))))
        w_TN = width_T1 * (2 * at_N - 1)
        x_TN = scale * np.sinh(np.sinh(w_TN))
        slope_TN = scale * np.cosh(np.sinh(w_TN)) * np.cosh(w_TN)
    return x_TN, slope_TN * (2 * width_T1 / len(at_N))


def _kinked(distribution: Distribution, tau_T1: Array, at_N: Array) -> tuple[Array, Array]:
    """Returns nodes x and weights for an integrand that is analytic except at 0 and τ, by the double exponential rule
    on each piece.

    The outer pieces end where exp(-x) y^k is negligible: y nears its limit like 1 - (λ-1)τ/x.
    Source: Takahasi & Mori 1974.
    """
    shape = distribution.shape or 1.0
    far_T1 = _TAIL + 8 * shape + 4 * np.sqrt(shape * MAX_ORDER * tau_T1)
    low, high_T1 = -3.9, np.arcsinh(2 / math.pi * np.log(far_T1))
    w_TN = low + (high_T1 - low) * at_N
    away_TN = np.exp(math.pi / 2 * np.sinh(w_TN))
    outer_TN = away_TN * (math.pi / 2) * np.cosh(w_TN) * ((high_T1 - low) / len(at_N))
    w_N = 3.2 * (2 * at_N - 1)
    share_N = 1 / (1 + np.exp(-math.pi * np.sinh(w_N)))
    inner_N = share_N * (1 - share_N) * math.pi * np.cosh(w_N) * (6.4 / len(at_N))
    x_TN = np.concatenate([-away_TN, tau_T1 * share_N, tau_T1 + away_TN], axis=1)
    return x_TN, np.concatenate([outer_TN, tau_T1 * inner_N, outer_TN], axis=1)


_RATIO = 1.03
"""The ratio of neighbouring points of the grid of `_convex_majorant`."""
_BELOW = 64.0
"""The ratio of the least shift to the grid's first point."""
_MAX_POINTS = 1000


def box_curve(box: BoxSum, orders: Sequence[float]) -> Array:
    """Returns r(α) of one step: (orders,), for orders α > 1; infinity above `MAX_ORDER`.

    Guarantees: bounds adding and removing a unit, up to 1e-9 relative rounding error.
    Source: Nasr et al. 2020, Lemma 4.
    """
    sums_K = log_moments_of_sum(box)
    whole_K = sums_K if box.sampling_rate == 1 else _sampled(box.sampling_rate, sums_K)
    orders_A = np.asarray(orders, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        scaled_A = np.interp(orders_A, np.arange(1, MAX_ORDER + 1), np.append(0.0, whole_K), right=math.inf)
    curve_A: Array = np.where(np.isnan(scaled_A), math.inf, scaled_A) / (orders_A - 1)
    return curve_A


def log_moments_of_sum(box: BoxSum) -> Array:
    """Returns upper bounds of S_k for k = 2..`MAX_ORDER`: (K,), read-only.

    `box.exchanged`: no coordinate moves further than u_j + w_j, where the u_j are halves of the bounds and the w_j
    the same numbers in another order. For convex H_k >= log M_k the sum of H_k(u_j + w_j) is largest where both are
    ordered alike (rearrangement), so that S_k <= Σ_j H_k(b_j/s).
    """
    return _log_moments_of_sum(Distribution(box.family, box.shape), box.shifts, box.noise_multiplier, box.exchanged)


@lru_cache(maxsize=256)
def _log_moments_of_sum(distribution: Distribution, shifts: Shifts, noise_multiplier: float, exchanged: bool) -> Array:
    bounds_T, counts_T = np.array(shifts, dtype=np.float64).T
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # infinity is a bound
        taus_T = bounds_T / noise_multiplier
        if np.isfinite(taus_T).all():
            logs_TK = _convex_majorant(distribution, taus_T) if exchanged else log_moments(distribution, taus_T)
            sums_K: Array = (1 + MARGIN) * (counts_T @ logs_TK)
        else:
            sums_K = np.full(MAX_ORDER - 1, math.inf)
    sums_K = np.where(np.isnan(sums_K), math.inf, np.maximum(sums_K, 1e-300))  # its logarithm is taken
    sums_K.flags.writeable = False
    return sums_K


def _convex_majorant(distribution: Distribution, taus_T: Array) -> Array:
    """Returns H_k(τ) >= log M_k(τ) =: g_k(τ), convex and growing on [0, max τ]: (T, K).

    g_k is the logarithm of ∫ z(u)^k z(u+τ)^(1-k) du. Let φ = -log z and φ'' >= -κ. Then for each u the integrand times
    exp((k-1) κ τ²/2) is log-convex in τ, and so is an integral of log-convex functions: g_k + (k-1) κ τ²/2 is convex.

    laplace, variance_gamma (a convolution of laplace) and sech are log-concave: κ = 0, and g_k is its own majorant.

    student_t and cauchy (df 1): φ'' = (df+1)(df-x²)/(df+x²)², least at x² = 3 df, κ = (df+1)/(8 df). Between points
    a < b the function lies below its chord plus C (τ-a)(b-τ)/2, C = (k-1) κ. On a grid τ_0 = 0 < τ_1 < … with
    τ_{i+1} - τ_i <= ρ τ_i for i >= 1 let v_0 = 0 and v_i = g_k(τ_i) + C (ρ τ_i + 2 τ_1)²/8. The polygon through these
    points is above g_k: in the first cell because C τ (τ_1-τ)/2 <= (τ/τ_1) C τ_1²/2; in the others because
    C (τ-a)(b-τ)/2 <= C (b-a)²/8, by which both ends are raised. Replacing each of its slopes by the largest so far
    keeps it above and makes it convex.
    """
    if distribution.family not in ("student_t", "cauchy"):
        return log_moments(distribution, taus_T)
    df = distribution.shape or 1.0
    largest = float(taus_T.max())
    smallest = float(np.min(taus_T[taus_T > 0]))
    points = math.ceil(min(math.log(_BELOW * (largest / smallest)) / math.log(_RATIO), _MAX_POINTS))
    grid_I = np.append(0.0, largest * _RATIO ** np.arange(-points, 1.0))
    grid_I[-1] = largest
    curvature_K = np.arange(1.0, MAX_ORDER) * (df + 1) / (8 * df)
    raised_I = (1.0001 * (_RATIO - 1) * grid_I + 2 * grid_I[1]) ** 2 / 8
    raised_I[0] = 0.0
    values_IK = log_moments(distribution, grid_I) + raised_I[:, None] * curvature_K
    slopes_IK = np.maximum.accumulate(np.diff(values_IK, axis=0) / np.diff(grid_I)[:, None], axis=0)
    above_IK = np.cumsum(slopes_IK * np.diff(grid_I)[:, None], axis=0)
    cell_T = np.clip(np.searchsorted(grid_I, taus_T) - 1, 0, len(grid_I) - 2)
    before_TK = np.where(cell_T[:, None] > 0, above_IK[cell_T - 1], 0.0)
    majorant_TK: Array = before_TK + slopes_IK[cell_T] * (taus_T - grid_I[cell_T])[:, None]
    return majorant_TK


def _sampled(q: float, sums_K: Array) -> Array:
    """Returns (α-1) r(α) for α = 2..`MAX_ORDER`; the cancelling terms k = 0, 1 never appear."""
    orders_K = np.arange(2, MAX_ORDER + 1)
    rest_AK = orders_K[:, None] - orders_K
    terms_K = sums_K + np.log(-np.expm1(-sums_K)) + orders_K * math.log(q)
    logs_AK = np.where(rest_AK >= 0, _log_binomials() + rest_AK * math.log1p(-q) + terms_K, -math.inf)
    scaled_A: Array = np.logaddexp(0.0, np.logaddexp.reduce(logs_AK, axis=1))
    return scaled_A


@lru_cache(maxsize=1)
def _log_binomials() -> Array:
    """Returns log C(α, k), α and k = 2..`MAX_ORDER`; anything where k > α."""
    log_factorials = np.array([math.lgamma(n + 1) for n in range(MAX_ORDER + 1)])
    orders_K = np.arange(2, MAX_ORDER + 1)
    rest_AK = np.maximum(orders_K[:, None] - orders_K, 0)
    logs_AK: Array = log_factorials[orders_K][:, None] - log_factorials[orders_K] - log_factorials[rest_AK]
    return logs_AK
