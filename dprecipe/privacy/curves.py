"""Rényi curves: r(α) of one step, for lists of orders α > 1.

Pure numpy; no scipy, so that `validate` starts fast.

Notation: q sampling rate, σ noise multiplier (standard deviation over the clip norm), μ sensitivity over
standard deviation, α order, y the density ratio dP/dQ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

_FRACTIONAL = (
    *(1.02, 1.05, 1.15, 1.25, 1.35),
    *(k / 10 for k in range(11, 20)),
    *(k / 10 for k in range(22, 60, 2)),
    *(k / 2 for k in range(13, 24, 2)),
)
_INTEGER = (*range(2, 33), *range(34, 65, 2), *range(68, 129, 6), *range(136, 257, 15))
DEFAULT_ORDERS: tuple[float, ...] = tuple(sorted({*map(float, _FRACTIONAL), *map(float, _INTEGER)}))
HIGH_ORDERS: tuple[float, ...] = tuple(float(round(256 * 2 ** (k / 2))) for k in range(1, 17))
"""Orders above the default ones, worth their time only if the optimum is at the end of the list."""

_MATRIX_ORDER = 256
_MAX_NODES = 40_000
_TAIL = 13.0
"""The number of standard deviations of a Gaussian tail that the quadrature covers: exp(-13²/2) = 2e-37."""


def gaussian(mu: float, orders: Sequence[float]) -> Array:
    """Returns r(α) = α μ² / 2 of a Gaussian mechanism with sensitivity/standard deviation μ.

    Guarantees: exact for every order. Source: Mironov 2017, Proposition 7.
    """
    return np.asarray(orders, dtype=np.float64) * (mu * mu / 2)


def poisson_gaussian(q: float, sigma: float, orders: Sequence[float]) -> Array:
    """Returns r(α) of one step of the Poisson-sampled Gaussian under add-or-remove-one; 0 < q <= 1, σ > 0.

    Integer orders by the binomial sum without its cancelling terms k = 0, 1, others by quadrature. Where that
    would take too long, the unsampled curve bounds the sampled one (joint quasi-convexity).

    Guarantees: bounds both directions (the removal is the larger), up to 1e-9 relative rounding error.
    Source: Mironov, Talwar & Zhang 2019, Theorems 4 and 5, Section 3.3.
    """
    orders_A = np.asarray(orders, dtype=np.float64)
    if q == 1:
        return gaussian(1 / sigma, orders)
    result_A = np.empty_like(orders_A)
    integral_A = (orders_A == np.floor(orders_A)) & (orders_A >= 2)
    if integral_A.any():
        result_A[integral_A] = _binomial(q, sigma, tuple(int(order) for order in orders_A[integral_A]))
    if not integral_A.all():
        result_A[~integral_A] = _quadrature(q, sigma, orders_A[~integral_A], replaced=False)
    return result_A


def poisson_gaussian_replaced(q: float, sigma: float, orders: Sequence[float]) -> Array:
    """Returns r(α) of one step of the Poisson-sampled Gaussian under replace-one; 0 < q <= 1, σ > 0.

    The pair is P = (1-q) N(0, σ²) + q N(1, σ²) against Q = (1-q) N(0, σ²) + q N(-1, σ²), its own mirror
    image. By quadrature; where that would take too long, the unsampled curve bounds the sampled one.

    Guarantees: P, Q dominate every pair of gradients of norm <= 1, up to 1e-9 relative rounding error.
    Source: Balle, Barthe & Gaboardi 2018, Theorem 2 (the sampled hockey stick is q times one of N(x) against
    a mixture of N(0) and N(x')), then Choquette-Choo et al. 2024 (a Gaussian against a mixture of Gaussians
    is dominated by the one-dimensional pair with the largest distances); Lebeda et al. 2024.
    """
    orders_A = np.asarray(orders, dtype=np.float64)
    if q == 1:
        return gaussian(2 / sigma, orders)
    return _quadrature(q, sigma, orders_A, replaced=True)


def mixed_gaussian(weights: Sequence[float], sigma: float, orders: Sequence[float]) -> Array:
    """Returns r(α) of Σ w_j N(j, σ²) against N(0, σ²), the larger of both directions; w_0 > 0.

    By quadrature; where that would take too long, the curve of the largest shift bounds it. Binomial and hypergeometric
    weights have generating polynomials with real roots alone, which factors exp(-j²/2σ²) keep (Pólya & Schur 1914): so
    the density ratio vanishes no nearer to the real line than that of `poisson_gaussian`.

    Guarantees: bounds both directions, up to 1e-9 relative rounding error.
    """
    used_J = np.flatnonzero(weights)
    last, logs_J = int(used_J[-1]), np.log(np.asarray(weights)[used_J])
    step, low = _spacing(sigma), -(1 + _TAIL * sigma)
    result_A = gaussian(last / sigma, orders)
    for index, order in enumerate(orders):
        high = last * (order + 1) + _TAIL * sigma
        if (high - low) / step <= _MAX_NODES:
            x_N = low + step * np.arange(int((high - low) / step) + 2)
            exponents_JN = (used_J[:, None] * x_N - used_J[:, None] ** 2 / 2) / (sigma * sigma)
            log_y_N = _log_mixture_of(weights, used_J, exponents_JN, logs_J)
            log_q_N = _log_normal(x_N, sigma, step)
            moments = (_log_moment(log_y_N, log_q_N, power) for power in (order, 1 - order))
            result_A[index] = min(result_A[index], max(moments) / (order - 1))
    return result_A


def mix_curves(usual: Array, other: Array, share: float, orders: Sequence[float]) -> Array:
    """Returns r(α) of either of two pairs, the second with probability `share`, if it is known which.

    Guarantees: exact: exp((α-1) r) is the mean of the two. Source: Mironov 2017, Definition 3.
    """
    below_A = np.asarray(orders, dtype=np.float64) - 1
    usual_A, other_A = below_A * usual, below_A * other
    mild_A = np.minimum(np.maximum(usual_A, other_A), 30.0)
    small_A = np.log1p((1 - share) * np.expm1(np.minimum(usual_A, 30.0)) + share * np.expm1(np.minimum(other_A, 30.0)))
    large_A = np.logaddexp(np.log1p(-share) + usual_A, np.log(share) + other_A) if share < 1 else other_A
    return np.where(mild_A < 30.0, small_A, large_A) / below_A


def fixed_size_gaussian(q: float, sigma: float, orders: Sequence[float]) -> Array:
    """Returns r(α) of one step of the Gaussian on batches of a share q of the units, drawn without replacement, under
    replace-one; 0 < q < 1, σ > 0 over one clip norm: a replaced unit moves the sum by up to two.

    With s = σ/2, c_j = j(j-1)/(2 s²) and B_l = E (y-1)^l, y the ratio of N(1/s, 1) to N(0, 1),

        exp((α-1) r) <= 1 + C(α,2) q² min{4 (exp(c_2) - 1), 2 exp(c_2)}
                          + Σ_{j=3}^α C(α,j) q^j min{4 sqrt(B_2⌊j/2⌋ B_2⌈j/2⌉), 2 exp(c_j)}.

    At integer orders up to 256, above infinity; between them (α-1) r is convex and interpolated.

    Guarantees: bounds both directions, up to 1e-9 relative rounding error.
    Source: Wang, Balle & Kasiviswanathan 2019, Theorem 27 and Corollary 10.
    """
    s, orders_A = sigma / 2, np.asarray(orders, dtype=np.float64)
    js_J = np.arange(2, _MATRIX_ORDER + 1)
    pure_J = js_J * (js_J - 1.0) / (2 * s * s)
    moments = _log_central_moments(s)
    near_J = np.log(4) + (moments[js_J // 2] + moments[(js_J + 1) // 2]) / 2
    near_J[0] = np.log(4) + pure_J[0] + np.log(-np.expm1(-pure_J[0]))
    terms_J = js_J * np.log(q) + np.minimum(near_J, np.log(2) + pure_J)
    logs_AJ = _log_binomials(tuple(range(2, _MATRIX_ORDER + 1))) + terms_J
    scaled = np.append(0.0, np.logaddexp(0.0, _log_sum_exp(logs_AJ)))
    curve_A: Array = np.interp(orders_A, np.arange(1, _MATRIX_ORDER + 1), scaled, right=np.inf) / (orders_A - 1)
    return curve_A


def _log_central_moments(s: float) -> Array:
    """Returns log B_l for l = 0, 2, 4, …, `_MATRIX_ORDER`; infinity where that would take too long.

    By the trapezoidal rule: the integrand is a sum of shifted normal densities, so that a spacing of 0.1 leaves errors
    of exp(-1900) of them.
    """
    spacing, mode = 0.1, np.sqrt(_MATRIX_ORDER)
    x_N = spacing * np.arange(
        -int((mode + 2 * _TAIL) / spacing), int((max(_MATRIX_ORDER / s, mode) + 2 * _TAIL) / spacing)
    )
    if len(x_N) > _MAX_NODES:
        return np.append(0.0, np.full(_MATRIX_ORDER // 2, np.inf))
    log_density_N = np.log(spacing / np.sqrt(2 * np.pi)) - x_N * x_N / 2
    exponent_N = x_N / s - 1 / (2 * s * s)
    with np.errstate(divide="ignore"):
        small_N = np.log(np.abs(np.expm1(np.minimum(exponent_N, 30.0))))
    log_distance_N = np.where(exponent_N < 30.0, small_N, exponent_N)
    orders = range(2, _MATRIX_ORDER + 1, 2)
    logs = [_log_sum_exp((log_density_N + order * log_distance_N)[None, :])[0] for order in orders]
    return np.append(0.0, logs)


def _binomial(q: float, sigma: float, orders: tuple[int, ...]) -> Array:
    """Returns log(1 + Σ_{k>=2} C(α,k) (1-q)^{α-k} q^k (exp(k(k-1)/2σ²) - 1)) / (α-1)."""
    small = tuple(order for order in orders if order <= _MATRIX_ORDER)
    log_moments: dict[int, float] = {}
    if small:
        logs_AK = _log_binomials(small) + _log_weights(q, sigma, np.asarray(small)[:, None], max(small))
        log_moments.update(zip(small, _log_sum_exp(logs_AK).tolist(), strict=True))
    for order in orders:
        if order > _MATRIX_ORDER:
            logs_1K = _log_binomials((order,)) + _log_weights(q, sigma, np.asarray([[order]]), order)
            log_moments[order] = float(_log_sum_exp(logs_1K)[0])
    return np.array([np.logaddexp(0.0, log_moments[order]) / (order - 1) for order in orders])


@lru_cache(maxsize=64)
def _log_binomials(orders: tuple[int, ...]) -> Array:
    """Returns log C(α, k), k = 2..max(α); -inf where k > α."""
    top = max(orders)
    log_factorials_K = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, top + 1)))))
    ks_K, orders_A1 = np.arange(2, top + 1), np.asarray(orders)[:, None]
    rest_AK = orders_A1 - ks_K
    logs_AK = log_factorials_K[orders_A1] - log_factorials_K[ks_K] - log_factorials_K[np.maximum(rest_AK, 0)]
    return np.where(rest_AK >= 0, logs_AK, -np.inf)


def _log_weights(q: float, sigma: float, orders_A1: NDArray[np.int64], top: int) -> Array:
    ks_K = np.arange(2, top + 1)
    exponents_K = ks_K * (ks_K - 1.0) / (2 * sigma * sigma)
    log_expm1_K = exponents_K + np.log(-np.expm1(-exponents_K))
    weights_AK: Array = (orders_A1 - ks_K) * np.log1p(-q) + ks_K * np.log(q) + log_expm1_K
    return weights_AK


def _quadrature(q: float, sigma: float, orders_A: Array, *, replaced: bool) -> Array:
    """Returns log ∫ Q yᵅ / (α-1) by the trapezoidal rule, which converges exponentially for analytic integrands.

    The integrand is analytic in the strip |Im x| < π σ² (there 1-q+q exp((x-1/2)/σ²) vanishes) and decays
    like a Gaussian of width σ, so a spacing of 0.4 min(σ, σ²) leaves errors below exp(-40).
    """
    step = _spacing(sigma)
    result_A = gaussian((2 if replaced else 1) / sigma, orders_A.tolist())
    low = -(1 + _TAIL * sigma)
    for index, order in enumerate(orders_A):
        high = order + 1 + _TAIL * sigma  # the mode of Q yᵅ is below α
        if (high - low) / step <= _MAX_NODES:
            x_N = low + step * np.arange(int((high - low) / step) + 2)
            above_N = _log_mixture(q, (x_N - 0.5) / (sigma * sigma))
            below_N = _log_mixture(q, (-x_N - 0.5) / (sigma * sigma)) if replaced else np.zeros_like(x_N)
            log_moment = _log_moment(above_N - below_N, below_N + _log_normal(x_N, sigma, step), float(order))
            result_A[index] = min(result_A[index], log_moment / (order - 1))
    return result_A


def _spacing(sigma: float) -> float:
    return 0.4 * min(sigma, sigma * sigma)


def _log_normal(x_N: Array, sigma: float, step: float) -> Array:
    """Returns the logarithms of the masses of N(0, σ²) around points `step` apart."""
    logs_N: Array = np.log(step / (sigma * np.sqrt(2 * np.pi))) - x_N * x_N / (2 * sigma * sigma)
    return logs_N


def _log_moment(log_y_N: Array, log_q_N: Array, order: float) -> float:
    """Returns log ∫ Q yᵅ, α > 1 or α < 0, as log1p of ∫ Q (yᵅ - 1 - α(y-1)), whose integrand is non-negative: nothing
    cancels."""
    grown_N = order * log_y_N
    mild_N = np.maximum(grown_N, log_y_N) < 30
    small_N = np.where(mild_N, log_y_N, 0.0)
    excess = np.sum(np.exp(log_q_N) * np.where(mild_N, np.expm1(order * small_N) - order * np.expm1(small_N), 0.0))
    if mild_N.all():
        return float(np.log1p(max(excess, 0.0)))
    grown_N, log_y_N = grown_N[~mild_N], log_y_N[~mild_N]
    steep_N = grown_N >= 30
    growth_N = np.where(steep_N, grown_N, 0.0)
    line_N = (1 - order) * np.exp(-growth_N) + order * np.exp(np.where(steep_N, log_y_N, 0.0) - growth_N)
    # yᵅ less the line 1 + α(y-1); where α < 0 and y is large, -αy is a little more than that
    log_bracket_N = np.where(steep_N, growth_N + np.log1p(-line_N * steep_N), np.log(abs(order)) + log_y_N)
    steep = float(_log_sum_exp((log_q_N[~mild_N] + log_bracket_N)[None, :])[0])
    return float(np.logaddexp(np.log1p(max(excess, 0.0)), steep))


def _log_mixture(q: float, exponent_N: Array) -> Array:
    """Returns log(1 - q + q exp(t)), without cancellation near t = 0."""
    clipped_N = np.minimum(exponent_N, 30.0)
    return np.where(
        exponent_N < 30.0,
        np.log1p(q * np.expm1(clipped_N)),
        np.logaddexp(np.log1p(-q), np.log(q) + exponent_N),
    )


def _log_mixture_of(weights: Sequence[float], used_J: NDArray[np.intp], exponents_JN: Array, logs_J: Array) -> Array:
    """Returns log Σ w_j exp(t_j), t_0 = 0, without cancellation where all t are small. The weights add up to 1."""
    moved_J1 = np.asarray(weights)[used_J[1:], None]
    small_N = np.log1p((moved_J1 * np.expm1(np.minimum(exponents_JN[1:], 30.0))).sum(axis=0))
    large_N: Array = np.logaddexp.reduce(logs_J[:, None] + exponents_JN)
    return np.where(exponents_JN.max(axis=0) < 30.0, small_N, large_N)


def _log_sum_exp(logs_AK: Array) -> Array:
    top_A1 = logs_AK.max(axis=1, keepdims=True)
    result_A: Array = np.log(np.sum(np.exp(logs_AK - top_A1), axis=1)) + top_A1[:, 0]
    return result_A
