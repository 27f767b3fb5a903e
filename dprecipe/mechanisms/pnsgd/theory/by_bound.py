"""Computes log δ at ε for every case of a last-iterate release, by each of the bounds of `last_iterate`."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pnsgd.theory import contraction
from dprecipe.mechanisms.pnsgd.theory.cases import ORDERS, ROUND_UP, VOID, Cases, contracts_nothing
from dprecipe.mechanisms.pnsgd.theory.iteration import Ints
from dprecipe.mechanisms.pnsgd.theory.search import MIN_LOG
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonLaplace

Array = NDArray[np.floating[Any]]


def combine_bound(cases: Cases, epsilon: float, bound: str) -> float:
    """Returns δ at ε >= 0 of all cases together, by one of the bounds of `last_iterate`; 0 if no record is ever used.

    Guarantees: an upper bound on δ(ε), of the worst case or of the weighted mean, as `Cases.worst` says.
    """
    return cases.combine(compute_logs(cases, epsilon, bound)) if len(cases.chain) else 0.0


def compute_logs(cases: Cases, epsilon: float | Array, bound: str) -> Array:
    """Returns log δ of each case at ε, (cases,); or at one ε for each case, if each has a chain of its own.

    Guarantees: upper bounds. -inf is δ = 0.
    """
    distribution = contraction.DISTRIBUTIONS[cases.event.family]
    if bound == "iteration":
        return distribution(epsilon, cases.mu)
    published_C = _log_published(cases, epsilon)
    if bound == "no_amplification":
        return published_C[cases.chain]
    if bound == "contraction":
        rates_CG = distribution(np.asarray(epsilon)[..., None], cases.reach)
        gained_CG = np.cumsum(_times(cases.gaps, rates_CG), axis=1)
        logs_CG = published_C[:, None] + np.concatenate([np.zeros((len(published_C), 1)), gained_CG[:, :-1]], axis=1)
        return _read_cases(cases, logs_CG, rates_CG)
    void = contracts_nothing(cases.event) and bool(np.min(epsilon) < VOID)
    if bound == "nonlinear":
        known_CG = published_C[:, None]
        return published_C[cases.chain] if void else _read_cases(cases, *_follow_chains(cases, epsilon, known_CG))
    ends_F: Array = np.minimum(distribution(epsilon, cases.mu), published_C[cases.chain])
    if void:
        return ends_F
    worked_G = np.isfinite(cases.knot_mu[0])
    known_CG = np.repeat(published_C[:, None], len(worked_G), axis=1)
    at_knots_CG = distribution(np.asarray(epsilon)[..., None], cases.knot_mu[:, worked_G])
    known_CG[:, worked_G] = np.minimum(known_CG[:, worked_G], at_knots_CG)
    return np.minimum(_read_cases(cases, *_follow_chains(cases, epsilon, known_CG)), ends_F)


def _follow_chains(cases: Cases, epsilon: float | Array, known_CG: Array) -> tuple[Array, Array]:
    """Returns log δ at each knot, and the logarithm of the factor of a step from there: the smaller of what is known
    and what the knot before it leaves after nonlinear contraction."""
    family, shape = cases.event.family, cases.gaps.shape
    known_CG = np.minimum.accumulate(np.broadcast_to(known_CG, shape), axis=1)
    above_CG = np.maximum(known_CG, MIN_LOG)
    rates_CG = contraction.log_shrunk(family, np.asarray(epsilon)[..., None], above_CG, cases.reach)
    if _times(cases.gaps, rates_CG).sum(axis=1).min() > -1e-11:
        return known_CG, np.zeros(shape)  # all factors are 1 in float64
    shrunk_CG = known_CG + _times(cases.gaps, rates_CG)
    helps_G: NDArray[np.bool_] = np.any(shrunk_CG[:, :-1] < known_CG[:, 1:], axis=0)
    logs_CG, rates_CG, improves = known_CG.copy(), np.zeros(shape), False
    for knot in range(shape[1] - 1):
        if not (improves or helps_G[knot]):
            continue
        now_C = logs_CG[:, knot]
        if now_C.max() < MIN_LOG:
            logs_CG[:, knot:] = np.minimum(logs_CG[:, knot:], now_C[:, None])
            break
        rate_C = contraction.log_shrunk(family, epsilon, np.maximum(now_C, MIN_LOG), cases.reach[:, knot])
        shrunk_C = now_C + _times(cases.gaps[:, knot], rate_C)
        improves = bool((shrunk_C < known_CG[:, knot + 1]).any())
        logs_CG[:, knot + 1], rates_CG[:, knot] = np.minimum(known_CG[:, knot + 1], shrunk_C), rate_C
    return logs_CG, rates_CG


def _read_cases(cases: Cases, logs_CG: Array, rates_CG: Array) -> Array:
    """Returns log δ of the cases, between the knots."""
    at = (cases.chain, cases.knot)
    result: Array = logs_CG[at] + _times(cases.beyond, rates_CG[at])
    return result


def _times(steps: Ints, rates: Array) -> Array:
    """Returns steps x rates, with 0 x -inf = 0."""
    result: Array = np.where(steps > 0, np.maximum(steps, 1) * rates, 0.0)
    return result


def _log_published(cases: Cases, epsilon: float | Array) -> Array:
    """Returns log δ of each chain if all its iterates were published. For Laplace noise, whose losses are composed on a
    grid, it is at most the bound of its Rényi curve."""
    if cases.event.family == "gaussian":
        return contraction.log_gaussian(epsilon, cases.published)
    epsilon_C = np.broadcast_to(np.asarray(epsilon, dtype=np.float64), cases.published.shape)
    kinds: dict[tuple[tuple[float, int], ...], list[int]] = {}
    for chain, row in enumerate(zip(*_merge_rows(cases), strict=True)):
        kinds.setdefault(tuple((m, u) for u, m in zip(*row, strict=True) if u), []).append(chain)
    logs_C = np.empty(len(epsilon_C))
    for uses, chains in kinds.items():
        logs_C[chains] = _log_laplaces(uses, tuple(epsilon_C[chains].tolist()))
    return np.minimum(logs_C, renyi_logs(cases.renyi, epsilon_C))


_MAX_KINDS = 64


def _merge_rows(cases: Cases) -> tuple[list[list[int]], list[list[float]]]:
    """Returns the uses and multipliers of each chain. If there are too many kinds, all get the most uses and the
    smallest noise."""
    uses_CR, multiplier_CR = cases.uses, cases.multiplier
    if len(np.unique(np.concatenate([uses_CR, multiplier_CR], axis=1), axis=0)) > _MAX_KINDS:
        uses_CR = np.broadcast_to(uses_CR.max(axis=0), uses_CR.shape)
        multiplier_CR = np.broadcast_to(multiplier_CR.min(axis=0), multiplier_CR.shape)
    return uses_CR.tolist(), multiplier_CR.tolist()


@functools.lru_cache(maxsize=4096)
def _log_laplaces(uses: tuple[tuple[float, int], ...], epsilons: tuple[float, ...]) -> Array:
    """Returns log δ at each ε of Laplace noise, (multiplier, number of uses): one use in closed form, several by
    composed losses."""
    from dprecipe.privacy import accountants  # which answers for this event too

    if sum(count for _, count in uses) == 1:
        return contraction.log_laplace(epsilons, 1 / uses[0][0])
    max_epsilon = sum(count / multiplier for multiplier, count in uses) * ROUND_UP
    different = sorted({epsilon for epsilon in epsilons if epsilon < max_epsilon})
    charges = [Charge(PoissonLaplace(1.0, multiplier), count) for multiplier, count in uses]
    result = dict(accountants.profile(charges, Neighbouring.ADD_OR_REMOVE_ONE, "pld", different) if different else ())
    return np.array(
        [-math.inf if e >= max_epsilon else math.log(result[e]) if result[e] > 0 else MIN_LOG for e in epsilons]
    )


def renyi_logs(curve_FA: Array, epsilon: float | Array) -> Array:
    """Returns log δ at ε (or at one ε for each curve) of Rényi curves (cases, orders) at `ORDERS`; at most 0.

    Guarantees: upper bounds. Source: Canonne, Kamath & Steinke 2020, Proposition 12 (the improved conversion).
    """
    orders_A = np.asarray(ORDERS)
    logs_FA = (orders_A - 1) * (curve_FA - np.asarray(epsilon)[..., None] + np.log1p(-1 / orders_A)) - np.log(orders_A)
    return np.asarray(logs_FA.min(axis=1, initial=0.0))
