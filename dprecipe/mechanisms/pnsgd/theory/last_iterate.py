"""The accountant of `ProjectedDescent`: bounds on what the last iterate of a projected noisy descent reveals about one
record.

Bounds, the simplest first. Each of them holds, and the guarantee is the smallest:

"no_amplification"  as if every iterate were published
"contraction"       and each step after the last use shrinks δ by a factor (Asoodeh, Diaz & Calmon 2020)
"nonlinear"         and the factor falls with δ (`contraction.log_shrunk`)
"iteration"         amplification by iteration in Gaussian DP (`iteration`)
"hybrid"            iteration up to some step after the last use, nonlinear contraction after it; the best such step

Laplace noise has the first three. A bound is computed for each case: a position of the record in the order, and a step
at which the run stops. In a sequential order, the worst position counts. Over a random order and a random stop, δ(ε) is
averaged, because the hockey-stick divergence is jointly convex; the order and the number of steps may then be public.

| edge case | result |
|---|---|
| a record that is never used | δ = 0 |
| a use in the last step | no later noise hides that use; with a single use, `no_amplification` |
| one batch per pass | every step uses every record |
| a set so large that contraction is 1 in float64 | `contraction` and `nonlinear` equal `no_amplification` |
| ε = 0 | total variation distance |
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory import contraction
from dprecipe.mechanisms.pnsgd.theory.cases import (
    ORDERS,
    ROUND_UP,
    VOID,
    Cases,
    all_cases,
    cases_at,
    cases_of,
    contracts_nothing,
)
from dprecipe.mechanisms.pnsgd.theory.iteration import Ints
from dprecipe.mechanisms.pnsgd.theory.search import MIN_LOG, find_epsilon, find_epsilons
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


BOUNDS = ("no_amplification", "contraction", "nonlinear", "iteration", "hybrid")
_EQUAL = 1e-9
"""Relative difference below which the simpler of two bounds is named."""


@dataclass(frozen=True, slots=True)
class NamedBound:
    """An upper bound, and the name in `BOUNDS` of the bound that gave it."""

    value: float
    name: str


def delta(event: ProjectedDescent, epsilon: float, bound: str | None = None) -> NamedBound:
    """Returns δ at ε >= 0 for every record, by `bound` or by the smallest of all, named after the simplest that gives
    it.

    Guarantees: the run is (ε, value)-DP under the event's relation.

    Raises:
        ValueError: ε negative or NaN, an unknown bound, one that doesn't hold for Laplace noise.
    """
    return _delta(all_cases(event), epsilon, bound)


def epsilon(event: ProjectedDescent, delta: float, bound: str | None = None) -> NamedBound:
    """Returns ε at δ, 0 < δ < 1, for every record, within 1e-6 (relative) of the smallest; infinity if there is none.

    Guarantees: the run is (value, δ)-DP under the event's relation.

    Raises:
        ValueError: δ outside (0, 1), an unknown bound, one that doesn't hold for Laplace noise.
    """
    return _epsilon(all_cases(event), delta, bound)


def delta_at(event: ProjectedDescent, position: int, epsilon: float, bound: str | None = None) -> NamedBound:
    """Returns the same as `delta`, for the record at `position` (1 to `size`) of a sequential order only.

    Raises:
        ValueError: as `delta`; a permuted order, a position that there isn't.
    """
    return _delta(cases_at(event, position), epsilon, bound)


def epsilon_at(event: ProjectedDescent, position: int, delta: float, bound: str | None = None) -> NamedBound:
    """Returns the same as `epsilon`, for the record at `position` (1 to `size`) of a sequential order only.

    Raises:
        ValueError: as `epsilon`; a permuted order, a position that there isn't.
    """
    return _epsilon(cases_at(event, position), delta, bound)


def deltas_at(event: ProjectedDescent, positions: Sequence[int], epsilon: float) -> Array:
    """Returns δ at ε for the record at each position, (positions,): the smallest bound, as `delta_at`. If there are
    many stages and batches, neighbouring batches share the value of the worst, as in `delta`.

    Guarantees: upper bounds.

    Raises:
        ValueError: as `delta_at`; a random stop.
    """
    _check_epsilon(epsilon)
    cases, case_P = cases_of(event, tuple(positions))
    logs_F = compute_logs(cases, epsilon, bounds(event)[-1]) if len(cases.chain) else np.zeros(0)
    values_F = np.append(np.exp(np.clip(logs_F, MIN_LOG, 0.0)) * ~np.isneginf(logs_F), 0.0)
    result: Array = values_F[case_P]
    return result


def epsilons_at(event: ProjectedDescent, positions: Sequence[int], delta: float) -> Array:
    """Returns ε at δ for the record at each position, (positions,), as `deltas_at` does; infinity if there is none.

    Guarantees: upper bounds.

    Raises:
        ValueError: as `epsilon_at`; a random stop.
    """
    _check_delta(delta)
    cases, case_P = cases_of(event, tuple(positions))
    if not len(cases.chain):
        return np.zeros(len(case_P))
    result_F = find_epsilons(
        lambda epsilon_F: compute_logs(cases, epsilon_F, bounds(event)[-1]),
        delta,
        len(cases.chain),
        cases.upper_epsilon(delta),
    )
    result: Array = np.append(result_F, 0.0)[case_P]
    return result


def gaussian_mu(event: ProjectedDescent) -> float | None:
    """Returns μ of the worst record by "iteration", which bounds δ at every ε; None for a mean over positions or
    Laplace noise.

    Guarantees: the run is μ-GDP.
    """
    cases = all_cases(event)
    if event.family != "gaussian" or not cases.worst:
        return None
    return float(cases.mu.max(initial=0.0))


def renyi_delta(event: ProjectedDescent, epsilon: float) -> float:
    """Returns δ at ε >= 0 from Rényi curves: α μ²/2 by iteration, case by case, or the curve of composed Laplace noise.

    Guarantees: an upper bound, never below `delta`.
    Source: Canonne, Kamath & Steinke 2020, Proposition 12, averaged as in `delta`.

    Raises:
        ValueError: ε negative or NaN.
    """
    _check_epsilon(epsilon)
    cases = all_cases(event)
    if event.family == "gaussian":
        curve_FA: Array = np.square(cases.mu)[:, None] * (np.asarray(ORDERS) / 2)
    else:
        curve_FA = cases.renyi[cases.chain]
    return cases.combine(renyi_logs(curve_FA, epsilon))


def renyi_epsilon(event: ProjectedDescent, delta: float) -> float:
    """Returns ε at δ, 0 < δ < 1, from the same curves as `renyi_delta`; infinity where there is none.

    Guarantees: an upper bound, never below `epsilon` by more than 1e-6 relative.
    """
    _check_delta(delta)
    return find_epsilon(lambda e: renyi_delta(event, e), delta, all_cases(event).upper_epsilon(delta))


def bounds(event: ProjectedDescent) -> tuple[str, ...]:
    """Returns the names in `BOUNDS` of the bounds that hold for the event's noise."""
    return BOUNDS if event.family == "gaussian" else BOUNDS[:3]


def _delta(cases: Cases, epsilon: float, bound: str | None) -> NamedBound:
    _check_epsilon(epsilon)
    if bound is not None:
        _check_bound(cases.event, bound)
        return NamedBound(combine_bound(cases, epsilon, bound), bound)
    values = {name: combine_bound(cases, epsilon, name) for name in bounds(cases.event)}
    minimum = min(values.values())
    return NamedBound(minimum, next(name for name, value in values.items() if value <= minimum * (1 + _EQUAL)))


def _epsilon(cases: Cases, delta: float, bound: str | None) -> NamedBound:
    _check_delta(delta)
    name = bounds(cases.event)[-1] if bound is None else bound  # the last is the least of all, case by case
    _check_bound(cases.event, name)
    value = find_epsilon(lambda e: combine_bound(cases, e, name), delta, cases.upper_epsilon(delta))
    return NamedBound(value, name if bound is not None or math.isinf(value) else _delta(cases, value, None).name)


def _check_epsilon(epsilon: float) -> None:
    if not epsilon >= 0:
        raise ValueError(f"expected epsilon >= 0, got {epsilon}")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < delta < 1, got {delta}")


def _check_bound(event: ProjectedDescent, bound: str) -> None:
    if bound not in bounds(event):
        raise ValueError(f"unknown bound {bound!r}; known for {event.family} noise: {', '.join(bounds(event))}")
