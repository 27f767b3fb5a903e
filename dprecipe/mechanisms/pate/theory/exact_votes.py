"""GNMax exactly, by numerical integration: what each answer's probability is, and what one moved vote makes of it.

With z = (noisy count)/σ and S(z) = Σ_k log Φ(z - n_k/σ), class j answers with probability

    P_j = ∫ w_j dz,   w_j = φ(z - n_j/σ) exp(S - log Φ(z - n_j/σ)).

A vote that moves from i to k multiplies w_j by a ratio that belongs to i and one that belongs to k, so all one-vote
moves together are products of three matrices. Classes with equal counts are one class with a multiplicity.

log w_j is concave with a second derivative of at most -1, so the trapezoidal rule converges like exp(-c/step) and
windows of a few units around the modes hold everything.

Notation: n counts, σ standard deviation, α order. Axes: Q queries, M classes, C distinct counts, Z nodes, P moves,
A orders.

Source: the integrals are elementary; the rule: Trefethen & Weideman 2014. The bound it replaces: `votes.gnmax_rdp`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dprecipe.mechanisms.pate.theory import votes
from dprecipe.privacy.divergence import Array

MARGIN = 1e-10
"""Relative; added to every divergence. The largest error measured against 40 digits is 5e-12."""

_STEP, _AGREEMENT, _HALVINGS = 0.125, 1e-6, 4
"""Halving the step squares the error, so agreement to 1e-6 with the doubled one leaves 1e-12."""
_WINDOW = 9.0
_MAX_NODES = 4000
_STEEPEST = 600.0
"""Largest exponent for which nothing overflows; beyond it the older bound serves."""
ROUNDING = 2.0**-46
"""Error of a log-ratio of two integrals; measured are 1e-15. It shows where divergences are below 1e-9."""
_AT_ONCE = 1 << 22
"""Values of a temporary table."""


def exact_gnmax_rdp(
    counts_QM: ArrayLike,
    sigma: float,
    orders: Sequence[float],
    progress: Callable[[int, int], None] | None = None,
) -> Array:
    """Data-dependent r(α) of one GNMax answer, the least there is: (Q, A). Each histogram is done once.

    `progress` is told how many of how many different histograms are done.

    Guarantees: bounds D_α(M(D)‖M(D')) at the D of the votes, as first argument, for every D' that differs by one vote,
    with a margin of 1e-10 (relative) and one for rounding; never more than `votes.gnmax_rdp`, which it is where the
    integrals are out of reach (gaps of hundreds of σ, or orders so high that the moments overflow).
    """
    orders_A = np.asarray(orders, dtype=np.float64)
    ordered_QM = -np.sort(-np.asarray(counts_QM, dtype=np.float64), axis=1)
    rows_UM, index_Q = np.unique(ordered_QM, axis=0, return_inverse=True)
    result_UA = votes.gnmax_rdp(votes.log_error(rows_UM, "gaussian", sigma), sigma, orders)
    for row, counts_M in enumerate(rows_UM):
        result_UA[row] = np.minimum(result_UA[row], _divergence(counts_M, sigma, orders_A))
        if progress is not None:
            progress(row + 1, len(rows_UM))
    result_QA: Array = result_UA[index_Q.reshape(-1)]
    return result_QA


def _rule(counts_C: Array, sizes_C: ArrayLike, sigma: float) -> tuple[Array, Array, Array] | None:
    """Nodes z, the masses w_j at them (C, Z) up to a factor each, and the factors' logarithms (C,)."""
    means_C = counts_C / sigma
    # every mode lies between half way to the plurality and sqrt(2 log m) above it; a moved vote shifts it by 1/σ
    low = (means_C[0] + means_C[-1]) / 2 - _WINDOW - 1 / sigma
    high = means_C[-1] + math.sqrt(2 * math.log(float(np.sum(sizes_C)))) + _WINDOW + 1 / sigma
    step = _STEP
    for _ in range(_HALVINGS):
        if not (high - low) / step <= _MAX_NODES:
            return None
        z_Z = low + step * np.arange(int((high - low) / step) + 2)
        away_CZ = z_Z - means_C[:, None]
        below_CZ = special.log_ndtr(away_CZ)
        logs_CZ = np.asarray(sizes_C, dtype=np.float64) @ below_CZ - below_CZ - away_CZ**2 / 2
        scale_C = logs_CZ.max(axis=1)
        weights_CZ = np.exp(logs_CZ - scale_C[:, None])
        sums_C = weights_CZ.sum(axis=1)
        if np.all(np.abs(2 * weights_CZ[:, ::2].sum(axis=1) / sums_C - 1) < _AGREEMENT):
            return z_Z, weights_CZ, scale_C + math.log(step / math.sqrt(2 * math.pi))
        step /= 2
    return None


def _divergence(counts_M: Array, sigma: float, orders_A: Array) -> Array:
    """The largest divergence over all moves of one vote: (A,); infinity where it's out of reach."""
    counts_C, sizes_C = np.unique(counts_M, return_counts=True)
    rule = _rule(counts_C, sizes_C, sigma)
    infinite_A = np.full(len(orders_A), np.inf)
    if rule is None:
        return infinite_A
    z_Z, weights_CZ, scale_C = rule
    away_CZ = z_Z - counts_C[:, None] / sigma
    below_CZ = special.log_ndtr(away_CZ)
    # what the loss of a vote, and a vote more, make of Φ and of φ
    log_less_CZ = special.log_ndtr(away_CZ + 1 / sigma) - below_CZ
    log_density_less_CZ = -(2 * away_CZ + 1 / sigma) / (2 * sigma)
    if max(float(log_less_CZ.max()), float(np.abs(log_density_less_CZ).max())) > _STEEPEST / 2:
        return infinite_A
    less_CZ = np.exp(log_less_CZ)
    more_CZ = np.exp(special.log_ndtr(away_CZ - 1 / sigma) - below_CZ)
    density_less_CZ = np.exp(log_density_less_CZ)
    density_more_CZ = np.exp((2 * away_CZ - 1 / sigma) / (2 * sigma))

    from_P, to_P = np.nonzero((counts_C > 0)[:, None] & ((sizes_C > 1)[:, None] | ~np.eye(len(counts_C), dtype=bool)))
    sums_C = weights_CZ.sum(axis=1)
    masses_C = np.exp(np.log(sums_C) + scale_C)
    stay_CCC = (weights_CZ[:, None] * less_CZ).reshape(-1, len(z_Z)) @ more_CZ.T
    stay_CP = stay_CCC.reshape(len(counts_C), len(counts_C), -1)[:, from_P, to_P] / sums_C[:, None]
    giving_P = ((weights_CZ * density_less_CZ) @ more_CZ.T)[from_P, to_P] / sums_C[from_P]
    gaining_P = ((weights_CZ * density_more_CZ) @ less_CZ.T)[to_P, from_P] / sums_C[to_P]
    moves = np.arange(len(from_P))
    sizes_CP = np.repeat(sizes_C.astype(np.float64)[:, None], len(from_P), axis=1)
    np.subtract.at(sizes_CP, (from_P, moves), 1.0)
    np.subtract.at(sizes_CP, (to_P, moves), 1.0)

    # log P/P' of all classes, and the mass of P' there
    ratios_KP = np.concatenate([stay_CP, giving_P[None], gaining_P[None]])
    losses_KP = -np.log(ratios_KP)
    neighbour_KP = (
        np.concatenate([sizes_CP * masses_C[:, None], masses_C[None, from_P], masses_C[None, to_P]]) * ratios_KP
    )
    return _renyi(losses_KP, neighbour_KP, orders_A)


def _renyi(losses_KP: Array, neighbour_KP: Array, orders_A: Array) -> Array:
    """max over P of log(1 + x) / (α-1), x = Σ_K P' (r^α - 1 - α(r-1)), with what rounding can take away added.

    sqrt(x) is, for small losses, a norm of them: an error δ of each moves it by less than α δ.
    """
    result_A = np.full(len(orders_A), np.inf)
    linear_P = np.sum(neighbour_KP * np.expm1(losses_KP), axis=0)
    chosen = np.flatnonzero(orders_A * float(np.max(losses_KP)) < _STEEPEST)
    span = max(1, _AT_ONCE // losses_KP.size)
    for start in range(0, len(chosen), span):
        part = chosen[start : start + span]
        part_A = orders_A[part]
        moments_AP = np.sum(neighbour_KP * np.expm1(part_A[:, None, None] * losses_KP), axis=1)
        excess_A = np.maximum(np.max(moments_AP - part_A[:, None] * linear_P, axis=1), 0.0)
        result_A[part] = np.log1p((np.sqrt(excess_A) + part_A * ROUNDING) ** 2) / (part_A - 1)
    return result_A * (1 + MARGIN)
