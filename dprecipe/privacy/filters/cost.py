"""The cost of a run to an account: a bound of its Rényi divergences given everything before it, in both orders of a
pair.

Each event's curve holds "whatever was released before" (`events.Event`), for both directions of the relation. So curves
add if events are chosen one after another, even interleaved with those of other runs (`filter`). An account never
charges a curve that was converted to (ε, δ) before adding, the loss distribution of a run whose events were chosen on
the way, or a minimum over orders.

| event | its cost |
|---|---|
| Gaussian without sampling | α μ²/2 |
| any with a Rényi curve | the curve, at most its largest loss |
| a truncated Poisson batch | its curve, which mixes full batches in; where these are rare, that without: a δ' (1) |
| votes, the rest of a filter's limit | like any Gaussian; together the limit, whatever was answered |
| published cost of votes | its own curve, for every pair (2) |
| one with a loose curve (3) | the curve, or the moments of its dominating pair; its mass at infinity is a δ' (4) |
| a profile alone | the moments of the pair of the profile, for its own relation |
| items of a unit | the worst number of shared and of unique items, order by order; unique ones revealed: a δ' |
| replaced by group privacy | removing one and adding another: the weak triangle inequality |

(1) Of probability at most 1e-15 in a step. Whether a batch is full, and which others then stay in it, does not depend
on the unit: an observer who also sees this sees no less, and if the batch is not full, the unit joins as it would
without a maximum. (2) Infinite above its largest order. What the number says about these very votes is no cost. (3) A
last iterate, a tuned run, batches of one size. (4) Whichever is less at the middle order.

The moments of a pair. If (A, B) dominates a release at every ε, the release is post-processing of it (Blackwell): an
observer of (A, B) sees no less than one of the release, and choices that depend on the release alone stay the same.
With masses a of losses l under A, and a mass at infinity,

    exp((α-1) ρ(α)) = Σ a exp((α-1) l),   δ' = the mass at infinity.

For the pair of a profile that is 1 + α(α-1) ∫ (e^((α-1)ε) δ(ε) + e^(-αε) δ(ε)) dε over ε >= 0. One loss counts at all
orders, so that curve and moments are not mixed.

Source: Mironov 2017, Propositions 1 and 11; Sason & Verdú 2016 (the integral); Zhu, Dong & Wang 2022 (domination).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dprecipe.faults import Fault
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Event, count_by_event
from dprecipe.privacy.filters.cap import Spent, round_up_cost
from dprecipe.privacy.hockey_stick import LARGEST, MIN_DELTA, pair_losses, tabulate_curve
from dprecipe.privacy.loss import Array, GridError, Loss, LossPair, LossRangeError, NoPairError
from dprecipe.privacy.profile import Profile
from dprecipe.privacy.workload import relation_of_all
from dprecipe.privacy.worst_case import Items

_ROUNDING = 4e-9
"""A bound above the relative rounding error of a curve."""
_EXPONENTS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 11.0)
"""Hölder exponents that are tried for the weak triangle inequality."""
_RARE = 1e-15
"""The probability of a full batch up to which it is charged as a δ': a million steps then take 1e-9 of δ."""
_KNOTS = 600
_DENSER = 1.5
_CELLS = 200
"""The number of cells per standard deviation in a grid of losses, which adds at most 1/160,000 to the variance."""
_GRIDS = 4
_TAIL = 1e-18


class NotInAccount(Fault):
    """A refusal because the theory gives no cost of these charges in this account. Exit code 3."""

    exit_code = 3


def check_relation(of_run: Neighbouring, of_account: Neighbouring) -> None:
    """Refuses runs whose relation says nothing about the account's.

    A run planned for adding or removing a unit is charged for replacing one by what its events then cost: only its
    charges count. A bound for replacing a unit says nothing about adding one: under it, and under zeroing out, the
    number of units is free ("publish n" costs nothing).

    Raises:
        NotInAccount: no cost is known.
    """
    if of_run is of_account:
        return
    if (of_run, of_account) == (Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE):
        return
    raise NotInAccount(
        f"the run's guarantee is for {of_run.value}, which bounds nothing for {of_account.value}, the relation of the "
        "account",
        f"Set `budget.neighbouring: {of_account.value}` in the recipe, or charge an account of {of_run.value}.",
    )


def cost_of(charges: Iterable[Charge], neighbouring: Neighbouring, orders: Sequence[float]) -> Spent:
    """Returns the cost of all these charges together at each order, under the account's relation.

    Guarantees: whatever was released before, in whatever order the charges come, and whatever others come between them:
    for both orders of each pair of neighbours there is an event of probability at least 1 - δ' on which
    E exp((α-1) l) <= exp((α-1) ρ(α)) at every order α.

    Raises:
        NotInAccount: an event has no bound under this relation.
        ValueError: an order that is not above 1.
    """
    if not all(order > 1 for order in orders):
        raise ValueError(f"expected orders above 1, got {list(orders)}")
    requested = Neighbouring(neighbouring)
    charges, delta = _separate_full_batches(charges)
    counts = count_by_event(charges)
    relation = relation_of_all(counts, requested)
    total_A = np.zeros(len(orders))
    for event, count in counts.items():
        if count:
            curve_A, failure = _cost_of_one(event, relation, requested, tuple(map(float, orders)))
            total_A, delta = total_A + count * curve_A, delta + count * failure
    usable_A = np.where(np.isnan(total_A), np.inf, np.maximum(total_A, 0.0))
    return round_up_cost((usable_A * (1 + _ROUNDING)).tolist(), min(delta * (1 + _ROUNDING), 1.0))


def _separate_full_batches(charges: Iterable[Charge]) -> tuple[list[Charge], float]:
    """Returns the charges without maximum batch sizes that are hardly ever reached, and the probability that any is
    reached."""
    separated, failure = [], 0.0
    for charge in charges:
        chance = charge.event.full_chance
        rare = 0 < chance <= _RARE
        separated.append(Charge(charge.event.uncapped(), charge.count) if rare else charge)
        failure += chance * charge.count if rare else 0.0
    return separated, failure


@functools.lru_cache(maxsize=512)
def _cost_of_one(
    event: Event, relation: Neighbouring, requested: Neighbouring, orders: tuple[float, ...]
) -> tuple[Array, float]:
    """Returns ρ at the orders and δ' of one event."""
    orders_A = np.asarray(orders)
    profile = event.profile()
    if profile is not None and profile.relation != requested:
        raise NotInAccount(
            f"an event of kind {event.kind} has a bound for {profile.relation.value} alone, not for "
            f"{requested.value}, the account's relation",
            f"Charge an account of {profile.relation.value}, or set `budget.neighbouring: {requested.value}` in the "
            "recipe and plan it again.",
        )
    square = event.squared_mu(1, relation)
    if square is not None:
        return orders_A * (square / 2), 0.0
    items = event.items()
    if items is not None:
        return _cost_of_items(items, relation, orders_A)
    if not event.is_bounded(relation):
        raise NotInAccount(
            f"an event of kind {event.kind} has no bound for {relation.value}, the account's relation",
            "Charge an account of another relation, or set `sampling: {scheme: poisson, …}` in the recipe.",
        )
    if profile is not None and not event.composes:
        return cost_of_profile(profile, orders_A)
    steps = 2 if relation is Neighbouring.REPLACE_ONE else 1  # the largest loss is that of adding or removing a unit
    if event.needs_group_privacy(relation):
        known = event.unamplified(relation).squared_mu(1, relation)
        largest = steps * event.max_loss if known is None else orders_A * (known / 2)
        return np.minimum(_replace_in_two_steps(event, orders_A), largest), 0.0
    curve_A = np.minimum(event.rdp(orders, relation), steps * event.max_loss)
    return (curve_A, 0.0) if event.exact_curve else _less_by_pair(event, relation, orders_A, curve_A)


def _cost_of_items(items: Items, relation: Neighbouring, orders_A: Array) -> tuple[Array, float]:
    """Returns ρ at the orders and δ' of the items of a unit.

    Let u of the `count` items be unique. If the first data set has the unit, they are revealed with probability
    1 - exp(-u leak). If nothing is revealed, the loss is that of the other count - u items, which move, plus u leak if
    the second data set has the unit. This is linear in u: largest at 0 or at `count`.
    """
    moved_A, leaked = orders_A * (items.count * items.squared_mu / 2), items.count * items.leak
    curve_A = np.maximum(moved_A, leaked)
    both = relation is Neighbouring.REPLACE_ONE
    return curve_A + moved_A if both else curve_A, -math.expm1(-leaked)


def _replace_in_two_steps(event: Event, orders_A: Array) -> Array:
    """Bounds the divergence of replacing a unit by the weak triangle inequality: D_α(P||Q) <= (α - 1/p)/(α-1)
    D_pα(P||R) + D_(q(α - 1/p))(R||Q), 1/p + 1/q = 1, R without the unit; the least over some p, for each order by
    itself. Source: Mironov 2017, Proposition 11."""

    def curve(orders: Array) -> Array:
        return np.asarray(event.rdp(tuple(orders.tolist()), Neighbouring.ADD_OR_REMOVE_ONE))

    bounds = [
        (orders_A - 1 / p) / (orders_A - 1) * curve(p * orders_A) + curve(p / (p - 1) * (orders_A - 1 / p))
        for p in _EXPONENTS
    ]
    return np.asarray(np.nanmin(np.where(np.isnan(bounds), np.inf, bounds), axis=0))


def _less_by_pair(event: Event, relation: Neighbouring, orders_A: Array, curve_A: Array) -> tuple[Array, float]:
    """Returns the curve, or the moments of the event's dominating pair, whichever is less at the middle order."""
    least = float(curve_A[0]) / float(orders_A[0])
    spread = math.sqrt(2 * least) if 0 < least < math.inf else 1.0
    moments = _moments_on_a_grid(lambda step: event.losses(relation, step, _TAIL), orders_A, spread)
    middle = len(orders_A) // 2
    return (curve_A, 0.0) if moments is None or curve_A[middle] <= moments[0][middle] else moments


def cost_of_profile(profile: Profile, orders_A: Array) -> tuple[Array, float]:
    """Returns ρ at the orders and δ' of a release whose δ(ε) is known, in both directions."""
    reaches = ((least, profile.epsilon(least).value) for least in (MIN_DELTA, 1e-16, 1e-12, 1e-9, 1e-6))
    least, reach = next(((least, reach) for least, reach in reaches if reach < LARGEST), (1.0, math.inf))
    if math.isinf(reach):
        return np.full(len(orders_A), np.inf), 0.0
    if reach <= 0:
        return np.zeros(len(orders_A)), least
    knots = reach * np.linspace(0.0, 1.0, _KNOTS) ** _DENSER
    table = tabulate_curve(lambda epsilon: profile.delta(epsilon).value, knots)
    moments = _moments_on_a_grid(lambda step: LossPair(pair_losses(table, table, step, _TAIL)), orders_A, reach / 9)
    return (np.full(len(orders_A), np.inf), 0.0) if moments is None else moments


def _moments_on_a_grid(make: Callable[[float], LossPair], orders_A: Array, spread: float) -> tuple[Array, float] | None:
    """Returns the moments of the pair on a grid that is fine for losses with this spread, or on a coarser one; None if
    there is none."""
    for coarser in range(_GRIDS):
        try:
            return pair_moments(make(spread / _CELLS * 4**coarser), orders_A)
        except GridError:
            continue
        except (NoPairError, LossRangeError):
            return None
    return None


def pair_moments(pair: LossPair, orders_A: Array) -> tuple[Array, float]:
    """Returns ρ at the orders, the larger of both directions, and δ', the larger mass at infinity.

    Guarantees: see the module.
    """
    both = [pair.removed] if pair.added is None else [pair.removed, pair.added]
    curves = [_moments(loss, orders_A) for loss in both]
    return np.maximum.reduce(curves), max(loss.infinity for loss in both)


def _moments(loss: Loss, orders_A: Array) -> Array:
    below_A1 = (orders_A - 1)[:, None]
    with np.errstate(divide="ignore"):
        logs_AN = np.log(loss.masses) + below_A1 * loss.losses
    return np.asarray(np.maximum(np.logaddexp.reduce(logs_AN, axis=1), 0.0) / (orders_A - 1))
