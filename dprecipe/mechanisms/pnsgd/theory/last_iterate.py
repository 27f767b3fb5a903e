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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory.by_bound import combine_bound, compute_logs, renyi_logs
from dprecipe.mechanisms.pnsgd.theory.cases import ORDERS, Cases, all_cases, cases_at, cases_of
from dprecipe.mechanisms.pnsgd.theory.search import MIN_LOG, find_epsilon, find_epsilons

Array = NDArray[np.floating[Any]]

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
