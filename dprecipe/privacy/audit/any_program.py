"""The chance that v or more canaries of one run are named right, over all programs that keep to a claimed curve.

Of m canaries, each in the run by a fair coin of its own, r are named "in" or "out"; r is fixed before the run. p_k is
the probability that k names are right. If δ(ε) bounds both directions of one canary in or out with all else fixed,
then for every ε >= 0

    Σ_k ((k+1) p_{k+1} - e^ε (r-k) p_k)_+ <= m δ(ε)   and   Σ_k ((r-k) p_k - e^ε (k+1) p_{k+1})_+ <= m δ(ε).

Nothing is presumed of the program: not that canaries are independent, nor how they are scored, nor that it has no
faults. The largest Σ_{k>=v} p_k is a linear programme. Its dual is solved in floating point, with multipliers on a grid
of k where r is large, and whatever the solver returns is made feasible and evaluated again (weak duality): a bad
solution gives a weak bound, never a wrong one.

Source: the f-DP audit of Mahloujifar, Melis & Chaudhuri 2024 (arXiv 2410.22235), whose recursion is this programme for
upper sets of k alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy import gdp
from dprecipe.privacy.audit.results import Guesses

if TYPE_CHECKING:
    from scipy import sparse

Floats = NDArray[np.float64]
Curve = Sequence[tuple[float, float]]

_GAUSSIAN_GRID = (0, 0.3, 0.6, 0.9, 1.2, *(1.4 + 0.2 * k for k in range(12)), 3.9, 4.2, 4.6)
"""The ε, in multiples of μ, at which a Gaussian curve is compared. Any others are sound."""
_ROUGH_GRID = (1.2, 2.0, 2.6, 3.2, 3.9)
_ALL, _FEW, _ROWS = 200, 120, 3000
"""The largest r whose multipliers are all free; how many are free of a larger one, linear in between; the most
counts that a first programme holds."""
_ROUNDS = 4
"""The most programmes that are solved: each holds the counts at which the one before broke most."""
_SLACK = 1e-9
"""Relative rounding error that is added to a bound."""
_STEPS = 200
"""The number of μ that are tried for each factor e."""
_LEAST, _MOST = -7 * _STEPS, 4 * _STEPS


def gaussian_curve(mu: float, grid: tuple[float, ...] = _GAUSSIAN_GRID) -> tuple[tuple[float, float], ...]:
    """Returns points (ε, δ) of the curve of a Gaussian pair, at these multiples of μ."""
    return tuple((mu * x, gdp.delta(mu, mu * x)) for x in grid)


def chance_on_curve(guesses: Guesses, curve: Curve) -> float:
    """Returns an upper bound of the probability that a program names at least this many right, whose canaries each keep
    to this curve.

    Guarantees: holds for every program, and whatever the solver returns.

    Args:
        guesses: their number of names is fixed before the run, and `canaries` counts every coin that was tossed.
        curve: points (ε, δ), ε >= 0, of a profile that bounds both directions; more points are tighter.
    """
    return _chance(guesses.canaries, guesses.named_in + guesses.named_out, guesses.correct, tuple(curve))


def lower_mu_of_guesses(guesses: Guesses, confidence: float, *, roughly: bool = False) -> float:
    """Returns the largest μ, of a grid of 0.5 %, for which no μ-GDP program names as many right with probability
    1 - confidence; 0 if there is none. `roughly`: some 3 % lower, in a quarter of the time.

    Guarantees: a program whose canaries each keep to the curve of a Gaussian pair gives more than its μ with
    probability at most 1 - confidence. It does not exclude programs with other curves of the same ε.
    """
    level = 1 - confidence

    def excluded(step: int, grid: tuple[float, ...] = _GAUSSIAN_GRID) -> bool:
        return chance_on_curve(guesses, gaussian_curve(math.exp(step / _STEPS), grid)) < level

    low, high = _LEAST, _MOST
    if not excluded(low):
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excluded(middle, _ROUGH_GRID) else (low, middle)
    if not roughly:  # more points exclude more
        low, high = low, min(_MOST, low + 32)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if excluded(middle) else (low, middle)
    return math.exp(low / _STEPS)


def lower_epsilon_of_guesses(guesses: Guesses, confidence: float, delta: float, *, roughly: bool = False) -> float:
    """Returns the ε at δ of a Gaussian pair of `lower_mu_of_guesses`: what the names imply within that family."""
    mu = lower_mu_of_guesses(guesses, confidence, roughly=roughly)
    return gdp.epsilon(mu, delta) if mu > 0 else 0.0


@lru_cache(maxsize=4096)
def _chance(m: int, r: int, v: int, curve: tuple[tuple[float, float], ...]) -> float:
    if v == 0:
        return 1.0
    points = [(e, d) for e, d in curve if e < 60 and d < r / m]  # others bind nothing: a sum of positive parts is <= r
    if not points:
        return 1.0
    epsilons_E, deltas_E = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    knots = _knots(r, v)
    interpolation, rows = _interpolate(knots, r), _first_rows(knots, r, v)
    best = 1.0
    for _ in range(_ROUNDS):
        multipliers = _solve(m, v, epsilons_E, deltas_E, interpolation, rows)
        bound, reduced_K = _evaluate(m, r, v, epsilons_E, deltas_E, multipliers)
        best = min(best, bound)
        above = np.setdiff1d(np.flatnonzero(reduced_K > reduced_K[rows].max() + 1e-6 * best), rows)
        if not len(above):
            break
        rows = np.union1d(rows, above[np.argsort(reduced_K[above])[-_FEW:]])
    return best


def _evaluate(
    m: int, r: int, v: int, epsilons_E: Floats, deltas_E: Floats, multipliers_DEK: Floats
) -> tuple[float, Floats]:
    """Returns the bound of any multipliers (2, E, r), clipped at 0, max_k (c_k - Σ y a) + m Σ_e δ_e max_k y_ek, and
    what stands under the first maximum (r + 1,)."""
    y_DEK = np.maximum(np.nan_to_num(multipliers_DEK, nan=0.0, posinf=0.0, neginf=0.0), 0.0)
    k_K = np.arange(r, dtype=np.float64)
    growth_E1 = np.exp(epsilons_E)[:, None]
    gain_K, loss_K, size_K = np.zeros(r + 1), np.zeros(r + 1), np.zeros(r + 1)
    for y_EK, sign, up, down in ((y_DEK[0], 1, 1.0, growth_E1), (y_DEK[1], -1, growth_E1, 1.0)):
        above, below = (y_EK * up).sum(axis=0) * (k_K + 1), (y_EK * down).sum(axis=0) * (r - k_K)
        gain_K[1:] += sign * above
        loss_K[:-1] += sign * below
        size_K[1:] += above
        size_K[:-1] += below
    reduced_K = (np.arange(r + 1) >= v) - (gain_K - loss_K) + _SLACK * (1 + size_K)
    paid = m * float(np.sum(deltas_E * y_DEK.max(axis=2).sum(axis=0)))
    return float(reduced_K.max()) + paid * (1 + _SLACK), reduced_K


def _solve(
    m: int,
    v: int,
    epsilons_E: Floats,
    deltas_E: Floats,
    interpolation: sparse.csr_array,
    rows: NDArray[np.int64],
) -> Floats:
    """Returns multipliers (2, E, r): a solution of the dual on these counts, or nearly; zeros if there is none."""
    from scipy import optimize, sparse

    (r, knots), count = interpolation.shape, len(epsilons_E)
    k_K = np.arange(r, dtype=np.float64)
    above = sparse.csr_array((k_K + 1, (np.arange(1, r + 1), np.arange(r))), shape=(r + 1, r)) @ interpolation
    below = sparse.csr_array((r - k_K, (np.arange(r), np.arange(r))), shape=(r + 1, r)) @ interpolation
    growth_E = np.exp(epsilons_E)
    parts = [above - g * below for g in growth_E] + [below - g * above for g in growth_E]
    free = sparse.csr_array((len(rows), 2 * count))
    # variables: y (2 E knots), their maxima (2 E), the level t; t >= c_k - Σ y a, and y <= its maximum
    held = sparse.hstack([-sparse.hstack(parts).tocsr()[rows], free, -np.ones((len(rows), 1))])
    size = 2 * count * knots
    tops = sparse.kron(sparse.eye_array(2 * count), np.ones((knots, 1)))
    capped = sparse.hstack([sparse.eye_array(size), -tops, sparse.csr_array((size, 1))])
    cost = np.concatenate([np.zeros(size), np.tile(m * deltas_E, 2), [1.0]])
    limits = np.concatenate([-(np.arange(r + 1) >= v).astype(np.float64)[rows], np.zeros(size)])
    bounds = [(0.0, None)] * (size + 2 * count) + [(None, None)]
    matrix, y = sparse.vstack([held, capped]).tocsr(), np.zeros(size)
    for method in ("highs", "highs-ipm", "highs-ds"):
        found = optimize.linprog(cost, A_ub=matrix, b_ub=limits, bounds=bounds, method=method)
        if found.x is not None:
            y = np.asarray(found.x[:size], dtype=np.float64)
            break
    spread: Floats = (interpolation @ y.reshape(2 * count, knots).T).T.reshape(2, count, r)
    return spread


def _knots(r: int, v: int) -> NDArray[np.int64]:
    """Returns the counts 0 ... r-1 at which multipliers are free: all if they are few, otherwise most around v."""
    if r <= _ALL:
        return np.arange(r)
    near = 6 * math.sqrt(r)
    around = np.linspace(max(0.0, v - near), min(r - 1.0, v + near), _FEW // 2)
    return np.unique(np.round(np.concatenate([np.linspace(0, r - 1, _FEW // 2), around, [v - 1]])).astype(np.int64))


def _first_rows(knots: NDArray[np.int64], r: int, v: int) -> NDArray[np.int64]:
    spread = np.round(np.linspace(0, r, min(r + 1, _ROWS))).astype(np.int64)
    return np.unique(np.concatenate([spread, knots, [v - 1, v, r - 1]]))


def _interpolate(knots: NDArray[np.int64], r: int) -> sparse.csr_array:
    """Returns the matrix (r, knots) of linear interpolation."""
    from scipy import sparse

    k_K = np.arange(r)
    left_K = np.clip(np.searchsorted(knots, k_K, side="right") - 1, 0, max(0, len(knots) - 2))
    if len(knots) == 1:
        return sparse.csr_array(np.ones((r, 1)))
    share_K = (k_K - knots[left_K]) / (knots[left_K + 1] - knots[left_K])
    entries = np.concatenate([1 - share_K, share_K])
    places = (np.concatenate([k_K, k_K]), np.concatenate([left_K, left_K + 1]))
    return sparse.csr_array((entries, places), shape=(r, len(knots)))
