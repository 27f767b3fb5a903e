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

Axes: T shifts, K moments k = 2, 3, …, A orders, I points of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dprecipe.noise.distributions import Distribution
from dprecipe.privacy.box.box import BoxSum, Shifts
from dprecipe.privacy.box.moments import MARGIN, MAX_ORDER, log_moments

Array = NDArray[np.float64]

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
