"""The accountant of `ProjectedDescent`: what the last iterate of a projected noisy descent tells of one record.

Bounds, the simplest first; every one holds, and the guarantee is the least:

"no_amplification"  as if every iterate were published
"contraction"       and each step after the last use shrinks δ by a factor (Asoodeh, Diaz & Calmon 2020)
"nonlinear"         and the factor falls with δ (`contraction.log_shrunk`)
"iteration"         amplification by iteration in Gaussian DP (`iteration`)
"hybrid"            iteration up to some step after the last use, nonlinear contraction after it; the best such step

With Laplace noise the first three. A bound is worked out for each case, a place of the record in the order and a step
at which the run stops. In a sequential order the worst place counts; over a random order, and a random stop, δ(ε) is
averaged (the hockey stick is jointly convex), so that the order may be known, and the number of steps.

Cases are taken together where there are many, and count as the least private of them: the fewest steps after the last
use, the most uses, the largest shift.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory import contraction, iteration
from dprecipe.mechanisms.pnsgd.theory.iteration import Ints, Stages, ladder
from dprecipe.privacy import curves, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonLaplace

Array = NDArray[np.floating[Any]]

BOUNDS = ("no_amplification", "contraction", "nonlinear", "iteration", "hybrid")

_EQUAL = 1e-9
"""Relative difference below which the simpler of two bounds is named."""
_CLOSE = 4e-7
"""Relative, between the ε given back and the least."""
_LEAST_LOG = -690.0
"""No positive δ is said to be less than exp of this."""
_ROUND_UP = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound, and which of `BOUNDS` gave it."""

    value: float
    name: str


def delta(event: ProjectedDescent, epsilon: float, bound: str | None = None) -> Bound:
    """δ at ε >= 0 of every record; by `bound`, or the least of all, named after the simplest that gives it.

    Guarantees: the run is (ε, value)-DP under the event's relation.

    Raises:
        ValueError: ε negative or NaN, an unknown bound, one that doesn't hold for Laplace noise.
    """
    return _delta(_all_cases(event), epsilon, bound)


def epsilon(event: ProjectedDescent, delta: float, bound: str | None = None) -> Bound:
    """ε at δ, 0 < δ < 1, of every record, within 1e-6 relative of the least; infinity where there is none.

    Guarantees: the run is (value, δ)-DP under the event's relation.

    Raises:
        ValueError: δ outside (0, 1), an unknown bound, one that doesn't hold for Laplace noise.
    """
    return _epsilon(_all_cases(event), delta, bound)


def delta_at(event: ProjectedDescent, position: int, epsilon: float, bound: str | None = None) -> Bound:
    """As `delta`, of the record at `position` (1 to `size`) of a sequential order alone.

    Raises:
        ValueError: as `delta`; a permuted order, a position that there isn't.
    """
    return _delta(_cases_at(event, position), epsilon, bound)


def epsilon_at(event: ProjectedDescent, position: int, delta: float, bound: str | None = None) -> Bound:
    """As `epsilon`, of the record at `position` (1 to `size`) of a sequential order alone.

    Raises:
        ValueError: as `epsilon`; a permuted order, a position that there isn't.
    """
    return _epsilon(_cases_at(event, position), delta, bound)


def deltas_at(event: ProjectedDescent, positions: Sequence[int], epsilon: float) -> Array:
    """δ at ε of the records at each of the positions, (positions,): the least of the bounds, as `delta_at`, but that
    where stages and lots are many, lots are taken together as in the guarantee of them all.

    Raises:
        ValueError: as `delta_at`; a random stop.
    """
    _check_epsilon(epsilon)
    cases, case_P = _cases_of(event, tuple(positions))
    logs_F = _logs(cases, epsilon, bounds(event)[-1]) if len(cases.chain) else np.zeros(0)
    values_F = np.append(np.exp(np.clip(logs_F, _LEAST_LOG, 0.0)) * ~np.isneginf(logs_F), 0.0)
    result: Array = values_F[case_P]
    return result


def epsilons_at(event: ProjectedDescent, positions: Sequence[int], delta: float) -> Array:
    """ε at δ of the records at each of the positions, (positions,): as `deltas_at`; infinity where there is none.

    Raises:
        ValueError: as `epsilon_at`; a random stop.
    """
    _check_delta(delta)
    cases, case_P = _cases_of(event, tuple(positions))
    if not len(cases.chain):
        return np.zeros(len(case_P))
    found_F = _least_epsilons(
        lambda epsilon_F: _logs(cases, epsilon_F, bounds(event)[-1]), delta, len(cases.chain), cases.no_more_than(delta)
    )
    result: Array = np.append(found_F, 0.0)[case_P]
    return result


def gaussian_mu(event: ProjectedDescent) -> float | None:
    """μ of the worst record by "iteration", which bounds δ at every ε; None for an average or for Laplace noise.

    Guarantees: the run is μ-GDP.
    """
    cases = _all_cases(event)
    if event.family != "gaussian" or not cases.worst:
        return None
    return float(cases.mu.max(initial=0.0))


def renyi_delta(event: ProjectedDescent, epsilon: float) -> float:
    """δ at ε >= 0 from Rényi curves: α μ²/2 by iteration, case by case, or the curve of composed Laplace noise.

    Guarantees: an upper bound, never below `delta`.
    Source: `conversion.delta`, the improved one, averaged as `delta` is.

    Raises:
        ValueError: ε negative or NaN.
    """
    _check_epsilon(epsilon)
    cases = _all_cases(event)
    if event.family == "gaussian":
        curve_FA: Array = np.square(cases.mu)[:, None] * (np.asarray(_ORDERS) / 2)
    else:
        curve_FA = cases.renyi[cases.chain]
    return cases.combined(_renyi_logs(curve_FA, epsilon))


def renyi_epsilon(event: ProjectedDescent, delta: float) -> float:
    """ε at δ, 0 < δ < 1, from the same curves as `renyi_delta`; infinity where there is none.

    Guarantees: an upper bound, never below `epsilon` by more than 1e-6 relative.
    """
    _check_delta(delta)
    return _least_epsilon(lambda e: renyi_delta(event, e), delta, _all_cases(event).no_more_than(delta))


def comparison_at(event: ProjectedDescent, position: int, epsilon: float, contraction_: float) -> dict[str, float]:
    """δ at ε of the paper's two curves for the record at `position`, with the paper's M; no guarantee, a comparison.

    {} but for one pass of constant steps with Gaussian noise, that runs to its end.

    Raises:
        ValueError: as `delta_at`.
    """
    _check_position(event, position)
    _check_epsilon(epsilon)
    if event.family != "gaussian" or event.stop != "last" or len(event.stages) > 1 or event.steps > event.lots:
        return {}
    ((steps, multiplier, _, diameter),) = event.stages
    later = steps - _lot_of(event, position)
    if later < 0:
        return {"proposition_1": 0.0, "theorem_4": 0.0}
    return {
        "proposition_1": contraction.proposition_1(epsilon, 1 / multiplier, contraction_, later),
        "theorem_4": contraction.theorem_4(epsilon, 1 / multiplier, contraction_ * diameter, later),
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Cases:
    """What δ(ε) depends on, without ε. A chain is a record's uses and the steps after the last of them; a case is a
    chain that ends so many steps (`after`) after its last use. Knots stand along the chains, from 0.

    The value is the largest over the cases (`worst`) or their weighted sum. Axes: chains C, stages R, knots G, cases F.
    """

    event: ProjectedDescent
    worst: bool
    published: Array
    """√Σ 1/multiplier² over the uses of a chain."""
    uses: Ints
    """How often each stage uses the record."""
    multiplier: Array
    """The noise multiplier of such a use."""
    renyi: Array
    """r(α) of all uses together, of Laplace noise: (chains, orders)."""
    gaps: Ints
    """Steps from a knot to the next."""
    reach: Array
    """Largest M D over the noise of those steps."""
    knot_mu: Array
    """μ by iteration at the knots; infinite where it was not worked out."""
    chain: Ints
    after: Ints
    knot: Ints
    """The last knot that is at most `after`."""
    beyond: Ints
    """Steps from there."""
    mu: Array
    weight: Array

    def combined(self, logs_F: Array) -> float:
        """One δ from the logarithms of the cases'."""
        if not len(logs_F):
            return 0.0
        values_F = np.where(np.isneginf(logs_F), 0.0, np.exp(np.clip(logs_F, _LEAST_LOG, 0.0)))
        if self.worst:
            return float(values_F.max())
        return min(1.0, float(values_F @ self.weight) * _ROUND_UP)

    def no_more_than(self, delta: float) -> float:
        """An ε that will do at δ, whatever the bound."""
        most = float(self.published.max(initial=0.0))
        if self.event.family == "gaussian":
            return gdp.epsilon(most, delta) if most else 0.0
        return float((self.uses / self.multiplier).sum(axis=1).max(initial=0.0))


def bounds(event: ProjectedDescent) -> tuple[str, ...]:
    """Those of `BOUNDS` that hold for the event's noise."""
    return BOUNDS if event.family == "gaussian" else BOUNDS[:3]


def _delta(cases: _Cases, epsilon: float, bound: str | None) -> Bound:
    _check_epsilon(epsilon)
    if bound is not None:
        _check_bound(cases.event, bound)
        return Bound(_value(cases, epsilon, bound), bound)
    values = {name: _value(cases, epsilon, name) for name in bounds(cases.event)}
    least = min(values.values())
    return Bound(least, next(name for name, value in values.items() if value <= least * (1 + _EQUAL)))


def _epsilon(cases: _Cases, delta: float, bound: str | None) -> Bound:
    _check_delta(delta)
    name = bounds(cases.event)[-1] if bound is None else bound  # the last is the least of all, case by case
    _check_bound(cases.event, name)
    value = _least_epsilon(lambda e: _value(cases, e, name), delta, cases.no_more_than(delta))
    return Bound(value, name if bound is not None or math.isinf(value) else _delta(cases, value, None).name)


def _least_epsilon(delta_of: Callable[[float], float], delta: float, high: float) -> float:
    """The least ε with δ(ε) <= δ but for `_CLOSE`, never less; by regula falsi in log δ, for a decreasing function."""
    at_zero = delta_of(0.0)
    if at_zero <= delta:
        return 0.0
    low, at_low, at_high = 0.0, _excess(at_zero, delta), _excess(delta_of(high), delta)
    while at_high > 0:
        low, at_low, high = high, at_high, 2 * max(high, 1e-6)
        if high > 1e12:
            return math.inf
        at_high = _excess(delta_of(high), delta)
    side = 0
    while high - low > _CLOSE * high:
        room = _CLOSE * high / 3
        x = low + (high - low) * at_low / (at_low - at_high) + side * room  # to the other side of the zero
        x = min(max(x, low + room), high - room)
        at_x = _excess(delta_of(x), delta)
        if at_x > 0:
            low, at_low, at_high, side = x, at_x, at_high / (2 if side > 0 else 1), 1
        else:
            high, at_high, at_low, side = x, at_x, at_low / (2 if side < 0 else 1), -1
    return high


def _least_epsilons(logs_of: Callable[[Array], Array], delta: float, many: int, high: float) -> Array:
    """`_least_epsilon` of many functions at once, by their log δ."""

    def excess(epsilon_F: Array) -> Array:
        result: Array = math.sqrt(-math.log(delta)) - np.sqrt(np.clip(-logs_of(epsilon_F), 0.0, -2 * _LEAST_LOG))
        return result

    low_F, high_F, side_F = np.zeros(many), np.full(many, high), np.zeros(many)
    at_low_F, at_high_F = excess(low_F), excess(high_F)
    void_F = at_low_F <= 0
    while np.any(beyond_F := (at_high_F > 0) & ~void_F & (high_F <= 1e12)):
        low_F, at_low_F = np.where(beyond_F, high_F, low_F), np.where(beyond_F, at_high_F, at_low_F)
        high_F = np.where(beyond_F, 2 * np.maximum(high_F, 1e-6), high_F)
        at_high_F = excess(high_F)
    none_F = (at_high_F > 0) & ~void_F
    while np.any(wide_F := (high_F - low_F > _CLOSE * high_F) & ~void_F & ~none_F):
        room_F = _CLOSE * high_F / 3
        x_F = low_F + (high_F - low_F) * at_low_F / np.where(wide_F, at_low_F - at_high_F, 1.0) + side_F * room_F
        x_F = np.where(wide_F, np.minimum(np.maximum(x_F, low_F + room_F), high_F - room_F), high_F)
        at_x_F = excess(x_F)
        up_F, down_F = wide_F & (at_x_F > 0), wide_F & ~(at_x_F > 0)
        at_high_F = np.where(up_F, at_high_F / np.where(side_F > 0, 2, 1), np.where(down_F, at_x_F, at_high_F))
        at_low_F = np.where(down_F, at_low_F / np.where(side_F < 0, 2, 1), np.where(up_F, at_x_F, at_low_F))
        low_F, high_F = np.where(up_F, x_F, low_F), np.where(down_F, x_F, high_F)
        side_F = np.where(up_F, 1.0, np.where(down_F, -1.0, side_F))
    return np.where(void_F, 0.0, np.where(none_F, np.inf, high_F))


def _excess(value: float, delta: float) -> float:
    """Its sign is that of value - delta; in the scale in which a Gaussian tail is a line."""
    log_value = math.log(value) if value > 0 else 2 * _LEAST_LOG
    return math.sqrt(-math.log(delta)) - math.sqrt(max(-log_value, 0.0))


def _value(cases: _Cases, epsilon: float, bound: str) -> float:
    return cases.combined(_logs(cases, epsilon, bound)) if len(cases.chain) else 0.0


def _logs(cases: _Cases, epsilon: float | Array, bound: str) -> Array:
    """log δ of the cases at ε; or at an ε of each, where each has a chain of its own."""
    law = contraction.LAWS[cases.event.family]
    if bound == "iteration":
        return law(epsilon, cases.mu)
    published_C = _log_published(cases, epsilon)
    if bound == "no_amplification":
        return published_C[cases.chain]
    if bound == "contraction":
        rates_CG = law(np.asarray(epsilon)[..., None], cases.reach)
        gained_CG = np.cumsum(_times(cases.gaps, rates_CG), axis=1)
        logs_CG = published_C[:, None] + np.concatenate([np.zeros((len(published_C), 1)), gained_CG[:, :-1]], axis=1)
        return _read(cases, logs_CG, rates_CG)
    void = _void(cases.event) and bool(np.min(epsilon) < _VOID)
    if bound == "nonlinear":
        known_CG = published_C[:, None]
        return published_C[cases.chain] if void else _read(cases, *_along(cases, epsilon, known_CG))
    ends_F: Array = np.minimum(law(epsilon, cases.mu), published_C[cases.chain])
    if void:
        return ends_F
    worked_G = np.isfinite(cases.knot_mu[0])
    known_CG = np.repeat(published_C[:, None], len(worked_G), axis=1)
    at_knots_CG = law(np.asarray(epsilon)[..., None], cases.knot_mu[:, worked_G])
    known_CG[:, worked_G] = np.minimum(known_CG[:, worked_G], at_knots_CG)
    return np.minimum(_read(cases, *_along(cases, epsilon, known_CG)), ends_F)


def _along(cases: _Cases, epsilon: float | Array, known_CG: Array) -> tuple[Array, Array]:
    """log δ at each knot, and the logarithm of the factor of a step from there: what is known, or what the knot before
    it leaves after nonlinear contraction, the less of both."""
    family, shape = cases.event.family, cases.gaps.shape
    known_CG = np.minimum.accumulate(np.broadcast_to(known_CG, shape), axis=1)
    above_CG = np.maximum(known_CG, _LEAST_LOG)
    rates_CG = contraction.log_shrunk(family, np.asarray(epsilon)[..., None], above_CG, cases.reach)
    if _times(cases.gaps, rates_CG).sum(axis=1).min() > -1e-11:
        return known_CG, np.zeros(shape)  # no factor is told from 1
    left_CG = known_CG + _times(cases.gaps, rates_CG)
    helps_G: NDArray[np.bool_] = np.any(left_CG[:, :-1] < known_CG[:, 1:], axis=0)
    logs_CG, rates_CG, ahead = known_CG.copy(), np.zeros(shape), False
    for knot in range(shape[1] - 1):
        if not (ahead or helps_G[knot]):
            continue
        now_C = logs_CG[:, knot]
        if now_C.max() < _LEAST_LOG:
            logs_CG[:, knot:] = np.minimum(logs_CG[:, knot:], now_C[:, None])
            break
        rate_C = contraction.log_shrunk(family, epsilon, np.maximum(now_C, _LEAST_LOG), cases.reach[:, knot])
        left_C = now_C + _times(cases.gaps[:, knot], rate_C)
        ahead = bool((left_C < known_CG[:, knot + 1]).any())
        logs_CG[:, knot + 1], rates_CG[:, knot] = np.minimum(known_CG[:, knot + 1], left_C), rate_C
    return logs_CG, rates_CG


def _read(cases: _Cases, logs_CG: Array, rates_CG: Array) -> Array:
    """log δ of the cases, between the knots."""
    at = (cases.chain, cases.knot)
    result: Array = logs_CG[at] + _times(cases.beyond, rates_CG[at])
    return result


def _times(steps: Ints, rates: Array) -> Array:
    """steps x rates, with 0 x -inf = 0."""
    result: Array = np.where(steps > 0, np.maximum(steps, 1) * rates, 0.0)
    return result


def _log_published(cases: _Cases, epsilon: float | Array) -> Array:
    """log δ of each chain if all its iterates were published; of Laplace noise, whose losses are composed on a grid,
    no more than its Rényi curve allows."""
    if cases.event.family == "gaussian":
        return contraction.log_gaussian(epsilon, cases.published)
    epsilon_C = np.broadcast_to(np.asarray(epsilon, dtype=np.float64), cases.published.shape)
    kinds: dict[tuple[tuple[float, int], ...], list[int]] = {}
    for chain, row in enumerate(zip(*_few_rows(cases), strict=True)):
        kinds.setdefault(tuple((m, u) for u, m in zip(*row, strict=True) if u), []).append(chain)
    logs_C = np.empty(len(epsilon_C))
    for uses, chains in kinds.items():
        logs_C[chains] = _log_laplaces(uses, tuple(epsilon_C[chains].tolist()))
    return np.minimum(logs_C, _renyi_logs(cases.renyi, epsilon_C))


_MOST_ROWS = 64


def _few_rows(cases: _Cases) -> tuple[list[list[int]], list[list[float]]]:
    """Uses and multipliers, chain by chain; the most of them and the least noise for all where there are many kinds."""
    uses_CR, multiplier_CR = cases.uses, cases.multiplier
    if len(np.unique(np.concatenate([uses_CR, multiplier_CR], axis=1), axis=0)) > _MOST_ROWS:
        uses_CR = np.broadcast_to(uses_CR.max(axis=0), uses_CR.shape)
        multiplier_CR = np.broadcast_to(multiplier_CR.min(axis=0), multiplier_CR.shape)
    return uses_CR.tolist(), multiplier_CR.tolist()


@functools.lru_cache(maxsize=4096)
def _log_laplaces(uses: tuple[tuple[float, int], ...], epsilons: tuple[float, ...]) -> Array:
    """log δ at each ε of Laplace noise, (multiplier, how often): one use in closed form, several by composed losses."""
    from dprecipe.privacy import accountants  # which answers for this event too

    if sum(count for _, count in uses) == 1:
        return contraction.log_laplace(epsilons, 1 / uses[0][0])
    most = sum(count / multiplier for multiplier, count in uses) * _ROUND_UP
    different = sorted({epsilon for epsilon in epsilons if epsilon < most})
    charges = [Charge(PoissonLaplace(1.0, multiplier), count) for multiplier, count in uses]
    found = dict(accountants.profile(charges, Neighbouring.ADD_OR_REMOVE_ONE, "pld", different) if different else ())
    return np.array([-math.inf if e >= most else math.log(found[e]) if found[e] > 0 else _LEAST_LOG for e in epsilons])


def _laplace_curves(uses_CR: Ints, multiplier_CR: Array) -> Array:
    """r(α) of the composed uses of each chain: arrays (chains, orders)."""
    orders_A = np.asarray(_ORDERS)
    result_CA = np.zeros((len(uses_CR), len(orders_A)))
    for stage in np.flatnonzero(uses_CR.any(axis=0)):
        tau_C1 = 1 / multiplier_CR[:, [stage]]
        rest_CA = (orders_A + (orders_A - 1) * np.exp(-(2 * orders_A - 1) * tau_C1)) / (2 * orders_A - 1)
        result_CA += uses_CR[:, [stage]] * (tau_C1 + np.log(rest_CA) / (orders_A - 1))
    return result_CA


def _renyi_logs(curve_FA: Array, epsilon: float | Array) -> Array:
    """log δ at ε, or an ε of each, of Rényi curves at `_ORDERS`: the improved conversion."""
    orders_A = np.asarray(_ORDERS)
    logs_FA = (orders_A - 1) * (curve_FA - np.asarray(epsilon)[..., None] + np.log1p(-1 / orders_A)) - np.log(orders_A)
    return np.asarray(logs_FA.min(axis=1, initial=0.0))


_ORDERS = (*curves.DEFAULT_ORDERS, *curves.HIGH_ORDERS)


def _check_epsilon(epsilon: float) -> None:
    if not epsilon >= 0:
        raise ValueError(f"expected epsilon >= 0, got {epsilon}")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < delta < 1, got {delta}")


def _check_bound(event: ProjectedDescent, bound: str) -> None:
    if bound not in bounds(event):
        raise ValueError(f"unknown bound {bound!r}; known for {event.family} noise: {', '.join(bounds(event))}")


def _check_position(event: ProjectedDescent, position: int) -> None:
    if event.order != "sequential":
        raise ValueError("a record of a permuted order has no position")
    if not 1 <= position <= event.size:
        raise ValueError(f"expected a position from 1 to {event.size}, got {position}")


def _lot_of(event: ProjectedDescent, position: int) -> int:
    """Which lot a record is in, counted from 1."""
    return (position - 1) // event.lot + 1


# Cases


_READS = 1 << 12
"""Roughly how many cases are told apart where there are more."""
_CHAINS = 400
"""Roughly how many chains, where each place in the order has its own."""
_MOST_ALONE = 1 << 16
"""So many lots x stages are worked out one by one where positions are asked about; of more, blocks of lots."""
_VOID = 60.0
"""A step of a longer reach takes off less than exp(-100) of any δ that counts, at any ε below this too."""


@functools.lru_cache(maxsize=16)
def _all_cases(event: ProjectedDescent) -> _Cases:
    return _alike(event, None) if len(_rows(event)) == 1 else _staged(event, None)


@functools.lru_cache(maxsize=64)
def _cases_at(event: ProjectedDescent, position: int) -> _Cases:
    _check_position(event, position)
    lot = (_lot_of(event, position),)
    return _alike(event, lot) if len(_rows(event)) == 1 else _staged(event, lot)


@functools.lru_cache(maxsize=8)
def _cases_of(event: ProjectedDescent, positions: tuple[int, ...]) -> tuple[_Cases, Ints]:
    """Cases with a chain each, and which of them is a position's; of records that are never used, -1."""
    if event.stop == "random":
        raise ValueError("positions are told apart in runs to the last step only")
    for position in positions:
        _check_position(event, position)
    lot_P = _ints([_lot_of(event, position) for position in positions])
    different = tuple(sorted({lot for lot in lot_P.tolist() if lot <= event.steps}))
    if len(different) * len(_rows(event)) <= _MOST_ALONE:
        cases = _alike(event, different) if len(_rows(event)) == 1 else _staged(event, different)
        return cases, np.where(lot_P <= event.steps, np.searchsorted(different, lot_P), -1)
    place_C, _ = _places_in_blocks(event)
    order_C = np.argsort(place_C)
    block_P = np.searchsorted(place_C[order_C], lot_P)
    return _all_cases(event), np.where(lot_P <= event.steps, np.append(order_C, -1)[block_P], -1)


def _void(event: ProjectedDescent) -> bool:
    """Whether no factor of contraction can be told from 1."""
    return event.family == "gaussian" and min(m * diameter for _, _, m, diameter in _rows(event)) > _VOID


@functools.lru_cache(maxsize=64)
def _rows(event: ProjectedDescent) -> tuple[tuple[int, float, float, float], ...]:
    """The stages, those alike joined."""
    rows: list[tuple[int, float, float, float]] = []
    for steps, *rest in event.stages:
        if rows and list(rows[-1][1:]) == rest:
            steps += rows.pop()[0]
        rows.append((steps, rest[0], rest[1], rest[2]))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class _Chains:
    first: Ints
    last: Ints
    """Step of the first and of the last use."""
    width: Ints
    """How many steps before `first` the record may stand as well."""


def _alike(event: ProjectedDescent, chosen: tuple[int, ...] | None) -> _Cases:
    """Cases of steps that are all alike: only the uses e and the steps after the last of them matter."""
    lots, steps = event.lots, event.steps
    if event.stop == "random":
        uses_C, chain_F, after_F, weight_F = _stopped(event, None if chosen is None else chosen[0])
    else:
        passes, rest = divmod(steps, lots)
        if chosen is None and event.order == "permuted":
            uses_C, chain_F, after_F, weight_F = _permuted(event)
        else:
            lots_in = (rest, lots if passes else 0) if chosen is None else chosen
            there = [steps - p for p in lots_in if 1 <= p <= steps]
            uses_C = _ints([left // lots + 1 for left in there])
            chain_F, after_F = np.arange(len(there)), _ints([left % lots for left in there])
            weight_F = np.ones(len(there))
    first_C = np.ones_like(uses_C)
    chains = _Chains(first_C, first_C + (uses_C - 1) * lots, np.zeros_like(uses_C))
    worst = event.stop == "last" and event.order == "sequential"
    knots_G = ladder(int(after_F.max(initial=0)), 48, 1 + 1 / 20)
    return _cases(event, chains, knots_G, np.ones(len(knots_G), dtype=np.bool_), worst, chain_F, after_F, weight_F)


def _permuted(event: ProjectedDescent) -> tuple[Ints, Ints, Ints, Array]:
    """Cases of a random place: a broken last pass has used some lots once more than others."""
    lots, (passes, rest) = event.lots, divmod(event.steps, event.lots)
    share = event.lot / event.size
    parts: list[tuple[int, Ints, Array]] = []
    if passes:
        after_F, counts_F = _blocks(rest, lots - 1, _READS)
        weight_F = counts_F * share
        weight_F[0] -= (lots * event.lot - event.size) / event.size  # the last lot, which may be short
        parts.append((passes, after_F, weight_F))
    if rest:
        after_F, counts_F = _blocks(0, rest - 1, _READS)
        parts.append((passes + 1, after_F, counts_F * share))
    chain_F = np.concatenate([np.full(len(after_F), index) for index, (_, after_F, _) in enumerate(parts)])
    after_F, weight_F = (np.concatenate([part[column] for part in parts]) for column in (1, 2))
    return _ints([uses for uses, _, _ in parts]), chain_F, after_F, weight_F


def _stopped(event: ProjectedDescent, lot: int | None) -> tuple[Ints, Ints, Ints, Array]:
    """Cases of a random stop. j steps after its first use a record was used j // lots + 1 times; how likely j is,
    depends on where it stands. The first place of a sequential order sees the most."""
    lots, steps = event.lots, event.steps

    def up_to(j: Array) -> Array:
        """The probability of less than j."""
        chance: Array = np.minimum(j, steps - (lot or 1) + 1) / steps
        if event.order == "permuted":
            chance = (_places(event, float(steps)) - _places(event, np.maximum(steps - j, 0.0))) / steps
        return chance

    passes = -(-steps // lots)
    ends_C = np.unique(np.concatenate([1 + ladder(max(passes - 3, 0), 64, 1.125), [max(passes - 1, 1), passes]]))
    counts_C = np.diff(ends_C, prepend=0)
    after_F, counts_F = _blocks(0, min(lots, steps) - 1, max(_READS // len(ends_C), 64))
    weights: list[Array] = []
    for uses, count in zip(ends_C.tolist(), counts_C.tolist(), strict=True):
        start_F = (uses - 1.0) * lots + after_F
        weights.append(counts_F * count / steps if count > 1 else up_to(start_F + counts_F) - up_to(start_F))
    weight_CF = np.maximum(np.array(weights), 0.0)
    chain_F, column_F = np.nonzero(weight_CF)
    return ends_C, chain_F, after_F[column_F], weight_CF[chain_F, column_F]


def _places(event: ProjectedDescent, q: Any) -> Any:
    """Σ over steps 1..q of the chance that a record at a random place was used by then."""
    short: Any = np.minimum(q, event.lots - 1)
    return event.lot / event.size * short * (short + 1) / 2 + np.maximum(q - event.lots + 1, 0)


def _staged(event: ProjectedDescent, chosen: tuple[int, ...] | None) -> _Cases:
    """Cases of steps that differ: each place in the order is a chain to the end of the run."""
    if event.stop == "random":
        raise ValueError("a random stop is bounded for steps that are all alike only")
    lots, steps = event.lots, event.steps
    if chosen is not None:
        place_C = _ints([lot for lot in chosen if lot <= steps])
        counts_C = np.ones_like(place_C)
    else:
        place_C, counts_C = _places_in_blocks(event)
    weight_C = counts_C * (event.lot / event.size)
    weight_C -= np.where(place_C == lots, (lots * event.lot - event.size) / event.size, 0.0)
    last_C = place_C + (steps - place_C) // lots * lots
    chains = _Chains(place_C, last_C, counts_C - 1)
    after_F = steps - last_C
    knots_G = ladder(int(after_F.max(initial=0)), 16, 1.2)
    worked_G = np.isin(knots_G, ladder(int(knots_G[-1]), 1, 4.0)) | (len(place_C) < 3)
    if _void(event):
        worked_G = knots_G == knots_G[-1]
    worst = event.order == "sequential"
    return _cases(event, chains, knots_G, worked_G, worst, np.arange(len(place_C)), after_F, weight_C)


def _places_in_blocks(event: ProjectedDescent) -> tuple[Ints, Ints]:
    """The last lot of each block of lots next to each other, and of how many it is."""
    lots, rest = event.lots, event.steps % event.lots
    parts = [(lots, lots - rest)] if event.steps >= lots else []
    parts += [(rest, rest)] if rest else []
    found = [(end, *_blocks(0, count - 1, _CHAINS)) for end, count in parts]
    place_C = np.concatenate([end - back_C for end, back_C, _ in found])
    return place_C, np.concatenate([counts_C for _, _, counts_C in found])


def _blocks(first: int, last: int, many: int) -> tuple[Ints, Ints]:
    """Where blocks of first..last begin, and how long they are: of one while that takes less than `many`/2, then
    growing with the number."""
    exact = max(many // 2, 1)
    ratio = 1 + math.log(max((last + 1) / exact, 2.0)) / exact
    starts = ladder(last, exact, ratio)
    starts = np.unique(np.concatenate([[first], starts[starts >= first]]))
    return starts, np.diff(starts, append=last + 1)


def _cases(
    event: ProjectedDescent,
    chains: _Chains,
    knots_G: Ints,
    worked_G: NDArray[np.bool_],
    worst: bool,
    chain_F: Ints,
    after_F: Ints,
    weight_F: Array,
) -> _Cases:
    stages, multiplier_R = _stages(event)
    tail_C = np.zeros_like(chains.first)
    np.maximum.at(tail_C, chain_F, after_F)
    at_CG = np.minimum(knots_G, tail_C[:, None])
    gaps_CG = np.diff(at_CG, axis=1, append=at_CG[:, -1:])
    uses_RC, _ = iteration.uses(stages, event.lots, chains.first, chains.last)
    worst_RC = iteration.widened(1 / multiplier_R, stages, chains.width)
    knot_F = np.searchsorted(knots_G, after_F, side="right") - 1
    mu_F, knot_mu_CG = np.full(len(chain_F), np.inf), np.full(at_CG.shape, np.inf)
    if event.family == "gaussian" and len(chain_F):
        chain_K = np.concatenate([chain_F, np.repeat(np.arange(len(tail_C)), int(worked_G.sum()))])
        after_K = np.concatenate([after_F, at_CG[:, worked_G].reshape(-1)])
        first_K, last_K, width_K = chains.first[chain_K], chains.last[chain_K], chains.width[chain_K]
        columns = np.stack([first_K, last_K + after_K, width_K]).tobytes()
        noise_R = stages.noise / stages.noise[0]
        rows = zip(stages.steps, stages.shift, stages.contraction, noise_R, strict=True)
        geometry = tuple((int(n), _digits(s, 1), float(m), _digits(nu, -1)) for n, s, m, nu in rows)
        mu_K = np.maximum(_mus(geometry, event.lots, columns) / stages.noise[0], iteration.LEAST)
        mu_F = mu_K[: len(chain_F)]
        knot_mu_CG[:, worked_G] = mu_K[len(chain_F) :].reshape(len(tail_C), -1)
    return _Cases(
        event=event,
        worst=worst,
        published=np.sqrt((uses_RC * np.square(worst_RC)).sum(axis=0)) * _ROUND_UP,
        uses=uses_RC.T,
        multiplier=1 / worst_RC.T,
        renyi=_laplace_curves(uses_RC.T, 1 / worst_RC.T) if event.family == "laplace" else np.zeros((0, 0)),
        gaps=gaps_CG,
        reach=_reach(event, stages, chains.last[:, None] + at_CG, gaps_CG),
        knot_mu=knot_mu_CG,
        chain=chain_F,
        after=after_F,
        knot=knot_F,
        beyond=after_F - np.minimum(knots_G[knot_F], after_F),
        mu=mu_F,
        weight=weight_F,
    )


@functools.lru_cache(maxsize=8)
def _mus(geometry: tuple[tuple[int, float, float, float], ...], lots: int, columns: bytes) -> Array:
    """`iteration.mu` of stages whose noise is relative to the first: μ falls as the noise of all grows, so that a
    search for the noise asks for one of these again and again."""
    first_K, stop_K, width_K = np.frombuffer(columns, dtype=np.int64).reshape(3, -1)
    steps, shift, m, noise = (np.array(column) for column in zip(*geometry, strict=True))
    return iteration.mu(Stages(steps.astype(np.int64), shift, m, noise), lots, first_K, stop_K, width_K)


def _digits(value: float, side: int) -> float:
    """Twelve digits, rounded up (`side` 1) or down (-1): what differs by rounding alone becomes equal."""
    return float(f"{value * (1 + side * 5e-12):.11e}")


def _stages(event: ProjectedDescent) -> tuple[Stages, Array]:
    """The stages with lengths over the diameter, rounded up in what they cost, and their noise multipliers."""
    rows = _rows(event)
    steps, multiplier_R, contraction_R, diameter_R = (np.array(column) for column in zip(*rows, strict=True))
    shift_R = 1 / (diameter_R * multiplier_R)
    return Stages(steps.astype(np.int64), shift_R, contraction_R.astype(np.float64), 1 / diameter_R), multiplier_R


def _reach(event: ProjectedDescent, stages: Stages, from_CG: Ints, gaps_CG: Ints) -> Array:
    """The largest M D over the noise among the steps of each gap; of an empty one, some stage's."""
    reach_R = np.array([m * diameter for _, _, m, diameter in _rows(event)])
    first_CG, last_CG = (
        np.minimum(np.searchsorted(stages.ends, step_CG), len(reach_R) - 1)
        for step_CG in (from_CG + np.minimum(gaps_CG, 1), from_CG + gaps_CG)
    )
    return iteration.largest(reach_R, first_CG, last_CG)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
