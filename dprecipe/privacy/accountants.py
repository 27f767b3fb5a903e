"""The accountants: the cost of a list of charges. Every number returned is an upper bound.

"pld"          privacy-loss distributions (Koskela et al. 2020; Doroshenko et al. 2022), the tightest. For
               unsampled Gaussians alone the exact Gaussian-DP formula is used and reported as "gdp"; where
               the Rényi bound is smaller (on coarse grids, and for exchanged codes and sanitised costs,
               whose loss distribution is not known) it is reported as "rdp"
"rdp"          Rényi curves with the improved conversion (Canonne, Kamath & Steinke 2020)
"rdp_classic"  Rényi curves with Mironov's conversion, to reproduce papers
"gdp"          the exact Gaussian-DP formula, also for a run whose profile a Gaussian's bounds; infinity if there are
               other events

They compose what events provide (`events.Event`) and know no kinds of events.

An event that does not compose has its own bounds (`profile.Profile`): "pld" is the smallest of them, reported by its
name; "rdp" and "rdp_classic" are the Rényi bound that checks it; "gdp" is the Gaussian bound, if there is one. They
hold for the event's own relation. Equal events are composed by basic composition. With other events (constants of
preprocessing that the run starts from, for example) it composes if it has a dominating pair (`Event.composes`);
otherwise there is no bound.

Where batches have a maximum size, two bounds are tried, and the smaller counts: the loss of a full batch is composed
with the rest; or a full batch counts as a failure, and the probability of any full batch is added to δ.

If the cost of an event depends on the neighbouring data sets (`Event.items`), every accountant gives the largest of all
cases, over everything together (`worst_case`); "gdp" gives none.

If an event has no direct bound for replacement, the whole workload is removed and added (`replacement`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from dprecipe.faults import Fault
from dprecipe.privacy import conversion, curves, gdp, pld, rounding, whole_runs, worst_case
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.conversion import Conversion, Optimum
from dprecipe.privacy.curves import Array
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.guarantee import Guarantee
from dprecipe.privacy.profile import Answer
from dprecipe.privacy.replacement import deltas_of_two, epsilon_of_two, refine_deltas, refine_epsilon
from dprecipe.privacy.workload import Workload, summarise_charges, unamplify_charges, uncap_charges
from dprecipe.privacy.worst_case import shift_charges

ACCOUNTANTS = ("pld", "rdp", "rdp_classic", "gdp")

_KEPT = 1024
"""The number of answers cached for each question: a plan asks again what its calibration asked."""
_CLOSE_ORDERS = 128
_MANY_STEPS = 8
_WHOLE_ORDERS = tuple(order for order in curves.DEFAULT_ORDERS if order >= 2 and order == int(order))
_MIN_MAX_ORDER = 1.001
"""The maximum Rényi order below which no finer grid of orders is tried."""


class AccountantsDisagree(Fault):
    """A contradiction between two accountants: a defect of this program, not of the recipe. Exit code 4."""


def epsilon(charges: Iterable[Charge], delta: float, neighbouring: Neighbouring, accountant: str) -> float:
    """Returns an upper bound of ε at δ, 0 < δ < 1, for all charges composed; infinity where no bound is known.

    Guarantees: the composition of the charges, in any order, is (result, δ)-DP under `neighbouring`.

    Raises:
        ValueError: unknown accountant, δ outside (0, 1).
    """
    return epsilon_answer(charges, delta, neighbouring, accountant).value


def delta(charges: Iterable[Charge], epsilon: float, neighbouring: Neighbouring, accountant: str) -> float:
    """Returns an upper bound of δ in [0, 1] at ε >= 0 for all charges composed; 1 where no bound is known.

    Guarantees: the composition of the charges is (ε, result)-DP under `neighbouring`.

    Raises:
        ValueError: unknown accountant, ε negative or NaN.
    """
    return delta_answers(charges, [epsilon], neighbouring, accountant)[0].value


def profile(
    charges: Iterable[Charge], neighbouring: Neighbouring, accountant: str, epsilons: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    """Returns (ε, upper bound of δ) at each ε >= 0, by one accountant.

    Guarantees: the composition of the charges is (ε, δ)-DP for every pair at once.

    Raises:
        ValueError: unknown accountant, an ε negative or NaN.
    """
    answers = delta_answers(charges, epsilons, neighbouring, accountant)
    return tuple((float(e), answer.value) for e, answer in zip(epsilons, answers, strict=True))


def epsilon_answer(charges: Iterable[Charge], delta: float, neighbouring: Neighbouring, accountant: str) -> Answer:
    """Returns `epsilon`, with the accountant that gave it.

    Raises:
        ValueError: unknown accountant, δ outside (0, 1).
        AccountantsDisagree: the privacy-loss distribution exceeds the Rényi bound, which it can't.
    """
    _check_accountant(accountant)
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < delta < 1, got {delta}")
    relation = Neighbouring(neighbouring)
    return _epsilon_answer(_for_accountant(charges, relation, accountant), delta, relation, accountant)


@functools.lru_cache(maxsize=_KEPT)
def _epsilon_answer(charges: tuple[Charge, ...], delta: float, neighbouring: Neighbouring, accountant: str) -> Answer:
    work = summarise_charges(charges, neighbouring)
    full_chance = work.ever_full
    if not full_chance:
        return _epsilon(work, charges, delta, accountant)
    results = []
    if full_chance < delta:
        rest = uncap_charges(charges)
        results.append(_epsilon(summarise_charges(rest, neighbouring), rest, delta - full_chance, accountant))
    if not full_chance <= _NEGLIGIBLE * delta:
        results.append(_epsilon(work, charges, delta, accountant))
    return min(results, key=lambda answer: answer.value)


_NEGLIGIBLE, _OFTEN = 3e-4, 1e-3
"""A share of δ: if full batches are rarer, composing their loss gains nothing. A probability: more is no failure."""


def _epsilon(work: Workload, charges: tuple[Charge, ...], delta: float, accountant: str) -> Answer:
    if work.empty:
        return Answer(0.0, accountant)
    if not work.bounded:
        return Answer(math.inf, accountant)
    if work.lone_profile is not None:
        return whole_runs.profile_epsilon(*work.lone_profile, delta, accountant)
    if accountant == "gdp" or (accountant == "pld" and work.gaussian):
        mu = work.dominating_mu
        return Answer(math.inf if mu is None else gdp.epsilon(mu, delta), "gdp")
    if accountant == "pld" and work.mu == 0 and work.ever_sampled <= delta:
        return Answer(0.0, accountant)  # the outputs differ only if the unit was ever sampled
    if work.needs_group_privacy:
        return _epsilon_of_replacement(work, charges, delta, accountant)
    if work.items:
        return _epsilon_of_items(work, charges, delta, accountant)
    kind = _conversion(accountant)
    best = _over_orders(work, lambda o, r: conversion.epsilon(o, r, delta, kind), work.max_loss)
    renyi = _rdp_answer(best, accountant)
    if accountant != "pld" or not work.has_losses or not 0 < best.value < math.inf:
        return renyi
    return _tighter(pld.epsilon(work, delta, best.value, best.order), renyi)


def delta_answers(
    charges: Iterable[Charge], epsilons: Sequence[float], neighbouring: Neighbouring, accountant: str
) -> list[Answer]:
    """Returns `delta` at each ε, with the accountant that gave it.

    Raises:
        ValueError: unknown accountant, an ε negative or NaN.
    """
    _check_accountant(accountant)
    if not all(e >= 0 for e in epsilons):
        raise ValueError(f"expected epsilon >= 0, got {list(epsilons)}")
    relation = Neighbouring(neighbouring)
    charged = _for_accountant(charges, relation, accountant)
    return list(_delta_answers(charged, tuple(map(float, epsilons)), relation, accountant))


@functools.lru_cache(maxsize=_KEPT)
def _delta_answers(
    charges: tuple[Charge, ...], epsilons: tuple[float, ...], neighbouring: Neighbouring, accountant: str
) -> Sequence[Answer]:
    work = summarise_charges(charges, neighbouring)
    full_chance = work.ever_full
    if not 0 < full_chance < _OFTEN:
        return _deltas(work, charges, epsilons, accountant)
    rest = uncap_charges(charges)
    uncapped = _deltas(summarise_charges(rest, neighbouring), rest, epsilons, accountant)
    uncapped = [replace(answer, value=min(1.0, answer.value + full_chance)) for answer in uncapped]
    if all(full_chance <= _NEGLIGIBLE * answer.value for answer in uncapped):
        return uncapped
    direct = _deltas(work, charges, epsilons, accountant)
    return [min(pair, key=lambda answer: answer.value) for pair in zip(uncapped, direct, strict=True)]


def _deltas(work: Workload, charges: tuple[Charge, ...], epsilons: Sequence[float], accountant: str) -> list[Answer]:
    if work.empty:
        return [Answer(0.0, accountant) for _ in epsilons]
    if not work.bounded:
        return [Answer(1.0, accountant) for _ in epsilons]
    if work.lone_profile is not None:
        profile, count = work.lone_profile
        return [whole_runs.profile_delta(profile, count, e, accountant) for e in epsilons]
    if accountant == "gdp" or (accountant == "pld" and work.gaussian):
        mu = work.dominating_mu
        return [Answer(1.0 if mu is None else gdp.delta(mu, e), "gdp") for e in epsilons]
    if work.needs_group_privacy:
        return _deltas_of_replacement(work, charges, epsilons, accountant)
    if work.items:
        return _deltas_of_items(work, charges, epsilons, accountant)
    kind = _conversion(accountant)

    def by_orders(e: float) -> Optimum:
        at_infinity = 0.0 if e >= work.max_loss else 1.0
        return _over_orders(work, lambda o, r: conversion.delta(o, r, e, kind), at_infinity)

    bests = [by_orders(e) for e in epsilons]
    renyi = [_rdp_answer(best, accountant) for best in bests]
    if accountant != "pld" or not work.has_losses or not epsilons:
        return renyi
    kl = float(rdp_curve(work, curves.DEFAULT_ORDERS[:1])[0])  # half the variance of the loss, roughly
    if not kl < math.inf:
        return renyi
    bounds = pld.deltas(work, epsilons, [(best.value, best.order) for best in bests], math.sqrt(2 * kl))
    # Next to the largest loss δ falls to 0 within less than the grid adds to ε.
    return [
        answer if answer.value < bound.value <= by_orders(e * (1 - _GRID)).value else _tighter(bound, answer)
        for e, bound, answer in zip(epsilons, bounds, renyi, strict=True)
    ]


_GRID = 10 * pld.TOLERANCE
"""The share of ε by which two bounds of δ may differ because one of them is computed on a grid."""


def rdp_curve(work: Workload, orders: Sequence[float]) -> Array:
    """Returns r(α) of the whole workload: the curves of its parts, added.

    Guarantees: an upper bound of the Rényi divergence at every order, in both directions of the relation.
    Source: Mironov 2017, Proposition 1.
    """
    total_A = curves.gaussian(work.mu, orders)
    if work.whole or work.needs_group_privacy:
        return total_A + math.inf  # no curve is known
    for part in work.parts:
        total_A = total_A + part.count * _curve_of_one(part.event, tuple(orders), work.neighbouring)
    return total_A


@functools.lru_cache(maxsize=512)
def _curve_of_one(event: Event, orders: tuple[float, ...], relation: Neighbouring) -> Array:
    return event.rdp(orders, relation)


def _for_accountant(charges: Iterable[Charge], relation: Neighbouring, accountant: str) -> tuple[Charge, ...]:
    """Returns the charges as an accountant takes them: the gain of dealing units to steps is known as a loss
    distribution alone."""
    return tuple(charges) if accountant == "pld" else unamplify_charges(charges, relation)


def _conversion(accountant: str) -> Conversion:
    return "classic" if accountant == "rdp_classic" else "improved"


def _over_orders(work: Workload, convert: Callable[[Sequence[float], Array], Optimum], at_infinity: float) -> Optimum:
    """Returns the best value over all orders tried; `at_infinity` is the value of the order ∞, from the largest
    loss."""
    orders = _orders(work)
    best = convert(orders, rdp_curve(work, orders))
    if best.at_last:
        longer = convert(curves.HIGH_ORDERS, rdp_curve(work, curves.HIGH_ORDERS))
        if longer.value < best.value:
            best = longer
    return best if best.value <= at_infinity else replace(best, value=at_infinity, at_first=False, at_last=False)


def _orders(work: Workload) -> tuple[float, ...]:
    """Returns the default orders. If there is a maximum order, also a fine grid below it. If the curves of many events
    are integrals, only integer orders, to save time."""
    if sum(part.event.integrates for part in work.parts) > _MANY_STEPS:
        return _WHOLE_ORDERS
    largest = min((part.event.max_order for part in work.parts), default=math.inf)
    if not _MIN_MAX_ORDER < largest < curves.DEFAULT_ORDERS[-1]:
        return curves.DEFAULT_ORDERS
    below = (1 + (largest - 1) * k / _CLOSE_ORDERS for k in range(1, _CLOSE_ORDERS))
    return tuple(sorted({*curves.DEFAULT_ORDERS, *below}))


def _epsilon_of_replacement(work: Workload, charges: tuple[Charge, ...], delta: float, accountant: str) -> Answer:
    """Returns ε by group privacy; or as if everyone knew who takes part, where that is less."""
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    best = epsilon_of_two(lambda at: epsilon_answer(charges, at, relation, accountant), delta)
    known = unamplify_charges(charges, work.requested)
    if known != charges:
        direct = _epsilon(summarise_charges(known, work.requested), known, delta, accountant)
        best = min(best, direct, key=lambda answer: answer.value)
    return refine_epsilon(charges, work.requested, delta, best) if accountant == "pld" else best


def _deltas_of_replacement(
    work: Workload, charges: tuple[Charge, ...], epsilons: Sequence[float], accountant: str
) -> list[Answer]:
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    best = deltas_of_two(lambda at: delta_answers(charges, at, relation, accountant), epsilons)
    known = unamplify_charges(charges, work.requested)
    if known != charges:
        direct = _deltas(summarise_charges(known, work.requested), known, epsilons, accountant)
        best = [min(pair, key=lambda answer: answer.value) for pair in zip(best, direct, strict=True)]
    return refine_deltas(charges, work.requested, epsilons, best) if accountant == "pld" else best


def _epsilon_of_items(work: Workload, charges: tuple[Charge, ...], delta: float, accountant: str) -> Answer:
    def epsilon_of(squared_mu: float, inner: float) -> Answer:
        rest = shift_charges(charges, squared_mu)
        return _epsilon(summarise_charges(rest, work.requested), rest, inner, accountant)

    return _of_items(worst_case.worst_epsilon(work.items, work.neighbouring, delta, epsilon_of))


def _deltas_of_items(
    work: Workload, charges: tuple[Charge, ...], epsilons: Sequence[float], accountant: str
) -> list[Answer]:
    def deltas_of(squared_mu: float, inner: tuple[float, ...]) -> list[Answer]:
        rest = shift_charges(charges, squared_mu)
        return _deltas(summarise_charges(rest, work.requested), rest, inner, accountant)

    answers = worst_case.worst_deltas(work.items, work.neighbouring, epsilons, deltas_of)
    return [_of_items(answer) for answer in answers]


def _of_items(answer: Answer) -> Answer:
    """Reports a Gaussian answer as "pld": if all else is Gaussian, its exact formula gives a case's loss
    distribution."""
    return replace(answer, accountant="pld") if answer.accountant == "gdp" else answer


def _rdp_answer(best: Optimum, accountant: str) -> Answer:
    name = "rdp_classic" if accountant == "rdp_classic" else "rdp"
    return Answer(best.value, name, best.at_first or best.at_last)


def _tighter(bound: pld.Bound, renyi: Answer) -> Answer:
    """Returns the smaller of two upper bounds, after a check that they don't contradict each other."""
    if bound.value <= renyi.value:
        return Answer(bound.value, "pld")
    if not bound.coarse and bound.value > 1.01 * renyi.value + 1e-6:
        raise AccountantsDisagree(
            f"internal fault: the privacy-loss distribution gives {bound.value}, above the Rényi bound "
            f"{renyi.value}, which is impossible",
            "Report this with the recipe; no number of this plan can be trusted.",
        )
    return renyi


def _check_accountant(accountant: str) -> None:
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"unknown accountant {accountant!r}; known: {', '.join(ACCOUNTANTS)}")


def guarantee(
    charges: Iterable[Charge], delta: float, neighbouring: Neighbouring, unit: str, accountant: str
) -> Guarantee:
    """Returns (ε, δ) for all charges by `accountant`, a second accountant's ε, and a profile δ(ε) around it.

    Every number is rounded up to six significant digits.

    Guarantees: the composition of the charges is (ε, δ)-DP for `epsilon`, for `alternative_epsilon` and for
    every point of `profile`; the profile's δ decrease strictly.

    Raises:
        ValueError: unknown accountant, δ outside (0, 1).
        AccountantsDisagree: the exact or numerical bound exceeds the Rényi bound.
    """
    charges = tuple(charges)
    first = epsilon_answer(charges, delta, neighbouring, accountant)
    second = epsilon_answer(charges, delta, neighbouring, "rdp" if accountant in ("pld", "gdp") else "pld")
    reported = rounding.round_up(first.value)
    return Guarantee(
        epsilon=reported,
        delta=delta,
        neighbouring=Neighbouring(neighbouring),
        unit=unit,
        accountant=first.accountant,
        alternative_accountant=second.accountant,
        alternative_epsilon=rounding.round_up(second.value),
        profile=_profile_around(charges, reported, delta, neighbouring, accountant),
        by_position=whole_runs.by_position(charges, delta, neighbouring, reported) if accountant == "pld" else (),
    )


_PROFILE_FACTORS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)


def _profile_around(
    charges: tuple[Charge, ...], epsilon: float, delta: float, neighbouring: Neighbouring, accountant: str
) -> tuple[tuple[float, float], ...]:
    if not 0 < epsilon < math.inf:
        return ((epsilon, delta),) if epsilon == 0 else ()
    epsilons = [rounding.round_up(factor * epsilon) for factor in _PROFILE_FACTORS]
    points: list[tuple[float, float]] = []
    for e, d in profile(charges, neighbouring, accountant, epsilons):
        rounded = min(1.0, rounding.round_up(d))
        if not points or rounded < points[-1][1]:
            points.append((e, rounded))
    return tuple(points)
