"""The dominating pairs of DP-SGD, put on a grid from their exact distribution functions.

In every pair the loss increases with x, so a cell of the grid is an interval of x. What lies beyond the ends
of the grid is charged: its P-mass to loss +infinity, its Q-mass to -infinity, which is the worst case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from dprecipe.privacy.loss import Array, GridError, Loss, from_cells, symmetrise_loss

_FEW = 1 << 16
_NEWTON, _CLOSE = 60, 1e-14


def gaussian(mu: float, step: float, tail: float, max_cells: int) -> Loss:
    """Returns N(μ, 1) against N(0, 1): the unsampled Gaussian; its own mirror image. μ > 0.

    Guarantees: dominates the pair; at most 2 `tail` is charged to either infinity.

    Raises:
        GridError: more than `max_cells` cells.
    """
    z = _deviations(tail)
    return _on_grid(
        step,
        (mu * -z - mu * mu / 2, mu * (mu + z) - mu * mu / 2),
        lambda l_N: l_N / mu + mu / 2,
        lambda x_N: _mixture_cells(x_N, 1.0, ((1.0, mu),)),
        lambda x_N: _mixture_cells(x_N, 1.0, ((1.0, 0.0),)),
        max_cells,
    )


def poisson_gaussian(q: float, sigma: float, step: float, tail: float, max_cells: int) -> Loss:
    """Returns (1-q) N(0, σ²) + q N(1, σ²) against N(0, σ²), 0 < q < 1, for removing a unit; `swap_loss` of it is for
    adding one.

    Guarantees: dominates every pair of gradients of norm <= 1; at most 3 `tail` is charged to either
    infinity.
    Source: Mironov, Talwar & Zhang 2019, Theorem 4; Zhu, Dong & Wang 2022, Theorem 11.

    Raises:
        GridError: more than `max_cells` cells.
    """
    variance = sigma * sigma
    low_x = -sigma * _deviations(tail)
    high_x = max(sigma * _deviations(tail), 1 + sigma * _deviations(tail / q))

    def x_of(l_N: Array) -> Array:
        inside_N = np.expm1(np.minimum(l_N, 500.0)) / q + 1
        with np.errstate(divide="ignore"):
            log_N = np.where(l_N < 500.0, np.log(np.maximum(inside_N, 0.0)), l_N - math.log(q))
        return 0.5 + variance * log_N

    return _on_grid(
        step,
        (_log_mixture(q, (low_x - 0.5) / variance), _log_mixture(q, (high_x - 0.5) / variance)),
        x_of,
        lambda x_N: _mixture_cells(x_N, sigma, ((1 - q, 0.0), (q, 1.0))),
        lambda x_N: _mixture_cells(x_N, sigma, ((1.0, 0.0),)),
        max_cells,
    )


def poisson_gaussian_replaced(q: float, sigma: float, step: float, tail: float, max_cells: int) -> Loss:
    """Returns (1-q) N(0, σ²) + q N(1, σ²) against its mirror image, 0 < q < 1, for replacing a unit, in both
    directions.

    The loss l and x are tied by x = σ² (l/2 + asinh(((1-q)/c) sinh(l/2))), c = q exp(-1/(2σ²)).

    Guarantees: dominates every pair of gradients of norm <= 1; at most 3 `tail` is charged to either
    infinity.
    Source: Balle, Barthe & Gaboardi 2018, Theorem 2; Choquette-Choo et al. 2024, mixture-of-Gaussians lemma;
    Lebeda, Regehr, Kamath & Steinke 2024.

    Raises:
        GridError: more than `max_cells` cells.
    """
    variance = sigma * sigma
    high_x = max(sigma * _deviations(tail), 1 + sigma * _deviations(tail / q))
    high_l = _log_mixture(q, (high_x - 0.5) / variance) - _log_mixture(q, (-high_x - 0.5) / variance)

    def x_of(l_N: Array) -> Array:
        half_N = np.maximum(np.abs(l_N) / 2, 1e-300)
        log_sinh_N = half_N + np.log(-np.expm1(-2 * half_N)) - math.log(2)
        t_N = math.log1p(-q) - math.log(q) + 1 / (2 * variance) + log_sinh_N
        grown_N = np.maximum(t_N, 0.0)
        asinh_N = np.where(
            t_N > 0,
            grown_N + np.log1p(np.sqrt(1 + np.exp(-2 * grown_N))),
            np.arcsinh(np.exp(np.minimum(t_N, 0.0))),
        )
        x_N: Array = variance * (l_N / 2 + np.sign(l_N) * asinh_N)
        return x_N

    return _on_grid(
        step,
        (-high_l, high_l),
        x_of,
        lambda x_N: _mixture_cells(x_N, sigma, ((1 - q, 0.0), (q, 1.0))),
        lambda x_N: _mixture_cells(x_N, sigma, ((1 - q, 0.0), (q, -1.0))),
        max_cells,
    )


def mixed_gaussian(weights: Sequence[float], move: float, step: float, tail: float, max_cells: int) -> Loss:
    """Returns Σ w_j N(jμ, 1) against N(0, 1), μ = `move` > 0, for removing a group; `swap_loss` of it is for adding it.
    The weights add up to 1, w_0 > 0, and another is positive.

    Guarantees: dominates the pair; at most one `tail` for each weight, and one more, is charged to either infinity.
    Source: `mixtures.MixedGaussian`.

    Raises:
        GridError: more than `max_cells` cells.
    """
    means_J = move * np.flatnonzero(np.array(weights) > 0)
    logs_J = np.log(np.array([weight for weight in weights if weight > 0]))
    low_x = -_deviations(tail)
    high_x = max(
        -low_x,
        *(mean + _deviations(min(tail / math.exp(log), 0.5)) for mean, log in zip(means_J, logs_J, strict=True)),
    )

    def log_terms(x_N: Array) -> Array:
        terms_JN: Array = logs_J[:, None] + np.outer(means_J, x_N) - means_J[:, None] ** 2 / 2
        return terms_JN

    def loss_of(x: float) -> float:
        return float(np.logaddexp.reduce(log_terms(np.array([x])))[0])

    def x_of(l_N: Array) -> Array:
        """By Newton's rule from the right, for the parts that move: their logarithm is convex and increases."""
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted_N = l_N + np.log(-np.expm1(np.minimum(logs_J[0] - l_N, 0.0)))
        x_N = np.min((wanted_N - logs_J[1:, None]) / means_J[1:, None] + means_J[1:, None] / 2, axis=0)
        some_N = np.isfinite(x_N)
        for _ in range(_NEWTON):
            terms_JN = log_terms(x_N[some_N])[1:]
            value_N = np.logaddexp.reduce(terms_JN)
            slope_N = (means_J[1:, None] * np.exp(terms_JN - value_N)).sum(axis=0)
            change_N = (value_N - wanted_N[some_N]) / slope_N
            x_N[some_N] -= change_N
            if not (np.abs(change_N) > _CLOSE * (1 + np.abs(x_N[some_N]))).any():
                break
        return np.where(some_N, x_N, -np.inf)

    parts = tuple((math.exp(log), float(mean)) for mean, log in zip(means_J, logs_J, strict=True))
    return _on_grid(
        step,
        (loss_of(low_x), loss_of(high_x)),
        x_of,
        lambda x_N: _mixture_cells(x_N, 1.0, parts),
        lambda x_N: _mixture_cells(x_N, 1.0, ((1.0, 0.0),)),
        max_cells,
    )


def fixed_size_gaussian(q: float, sigma: float, step: float, tail: float, max_cells: int) -> Loss:
    """Returns the pair for replacing a unit if batches are a share `q` of the units, drawn without replacement; its own
    mirror image.

    A replaced unit moves the sum by up to 2, so the hockey-stick curve, at ε >= 0 and in either direction, is at most
    that of (1-q) N(0, σ²) + q N(2, σ²) against N(0, σ²).

    Guarantees: dominates every pair of gradients of norm <= 1.
    Source: Balle, Barthe & Gaboardi 2018, Theorem 5 (subset without replacement); Dong, Roth & Su 2022, Theorem 9.

    Raises:
        GridError: more than `max_cells` cells.
    """
    return symmetrise_loss(poisson_gaussian(q, sigma / 2, step, tail, max_cells))


def _on_grid(
    step: float,
    ends: tuple[float, float],
    x_of: Callable[[Array], Array],
    p_cells: Callable[[Array], Array],
    q_cells: Callable[[Array], Array],
    max_cells: int,
) -> Loss:
    first, last = math.floor(ends[0] / step), max(math.ceil(ends[1] / step), math.floor(ends[0] / step) + 1)
    if last - first > max_cells:
        raise GridError
    inner_N = x_of(step * np.arange(first, last + 1))
    edges_N = np.concatenate(([-np.inf], inner_N, [np.inf]))
    p_N, q_N = p_cells(edges_N), q_cells(edges_N)
    return from_cells(step, first, p_N[1:-1], q_N[1:-1], float(p_N[0] + p_N[-1]), float(q_N[0] + q_N[-1]))


def _mixture_cells(x_N: Array, sigma: float, parts: tuple[tuple[float, float], ...]) -> Array:
    """Returns the mass of Σ w N(m, σ²) between neighbouring x, each from the tail where nothing cancels."""
    total_N = np.zeros(len(x_N) - 1)
    for weight, mean in parts:
        z_N = (x_N - mean) / sigma
        tail_N = _normal_tail(np.abs(z_N))
        low_N, high_N = tail_N[:-1], tail_N[1:]
        same_N = np.where(z_N[:-1] >= 0, low_N - high_N, high_N - low_N)
        across_N = (z_N[:-1] < 0) & (z_N[1:] > 0)
        total_N += weight * np.where(across_N, 1 - low_N - high_N, same_N)
    return np.maximum(total_N, 0.0)


def _normal_tail(z_N: Array) -> Array:
    """Returns Φ(-z), z >= 0, to a few units in the last place. Importing scipy takes longer than a few thousand of
    them."""
    if len(z_N) <= _FEW:
        return np.array([0.5 * math.erfc(z) for z in (z_N * math.sqrt(0.5)).tolist()])
    from scipy import special

    tail_N: Array = special.ndtr(-z_N)
    return tail_N


@lru_cache(maxsize=256)
def _deviations(tail: float) -> float:
    """Returns nearly the least z >= 0 with Φ(-z) <= tail."""
    low, high = 0.0, 40.0  # Φ(-40) is below all doubles
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * math.erfc(middle * math.sqrt(0.5)) > tail else (low, middle)
    return high + 1e-9


def _log_mixture(q: float, exponent: float) -> float:
    return (
        math.log1p(q * math.expm1(exponent))
        if exponent < 30
        else float(np.logaddexp(math.log1p(-q), math.log(q) + exponent))
    )
