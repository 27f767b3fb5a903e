"""Events whose cost depends on the neighbouring data sets: the largest cost of all cases, over the whole composition.

Some events are not dominated by any single pair: their cost depends on a property of the two data sets, which does not
change during the run. The maximum is then taken once, at the very end, and not event by event.

Here an event has `Items`: a unit that is added, removed or replaced has up to a certain number of items. An item that
other units have too moves a Gaussian release; an item that no other unit has reveals everything with a small
probability, and nothing otherwise. With D the δ of everything else and of the items that move, and the probabilities
exp(-p) before and exp(-q) after the change that nothing is revealed,

    δ(ε) = 1 - exp(-p) + exp(-p) D(ε + p - q),

which grows with every leak and every move: so a box of cases is bounded by the leaks of its upper corner and the moves
of its lower one. Boxes are split until their bounds are no more than what some case attains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from dprecipe.language.base import PositiveFloat
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.profile import Answer
from dprecipe.privacy.questions import GaussianSum, Question

_EPSILON_ROOM, _DELTA_ROOM = 2e-5, 1e-4
"""The shares of ε and δ by which a bound may exceed the largest cost that is attained."""
_MAX_BOUNDS = 200
"""The most boxes that are bounded; after that their bounds count as they are."""
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Items:
    """Up to `count` items of a unit: each moves a Gaussian release by a squared μ of `squared_mu`, or is revealed with
    probability 1 - exp(-`leak`)."""

    count: int
    squared_mu: float
    leak: float


@dataclass(frozen=True, slots=True)
class GaussianShift(Event):
    """A Gaussian mechanism with a given μ², whatever the relation: one case of items. It is in no ledger."""

    kind: ClassVar[str] = "gaussian_shift"
    value: PositiveFloat

    def squared_mu(self, count: int, relation: Neighbouring) -> float:
        return count * self.value

    def cross_check(self) -> Question:
        return GaussianSum(1 / math.sqrt(self.value))


@dataclass(frozen=True, slots=True)
class ItemBox:
    """A box of cases between two corners. Nothing is revealed with probability at least exp(-`before`) on the data set
    with the unit and exp(-`after`) on the other; the Gaussians move by at most `squared_mu`."""

    least_before: float
    before: float
    after: float
    squared_mu: float

    def inner_delta(self, delta: float) -> float:
        """Returns the δ at which ε of the rest is needed; at most 0 if the leak alone is more than δ."""
        return (delta - (1 - delta) * math.expm1(self.before)) * (1 - _ROUNDING) - _ROUNDING * delta

    def outer_epsilon(self, epsilon: float) -> float:
        """Returns ε of the whole, if that of the rest is `epsilon` at `inner_delta`."""
        return max(0.0, epsilon - self.least_before + self.after)

    def inner_epsilon(self, epsilon: float) -> float:
        """Returns the ε, possibly below 0, at which δ of the rest is needed."""
        return epsilon + self.least_before - self.after

    def outer_delta(self, epsilon: float, delta: float) -> float:
        """Returns δ of the whole, if that of the rest is `delta` at `abs(epsilon)`, with `epsilon` from
        `inner_epsilon`."""
        rest = delta if epsilon >= 0 else -math.expm1(epsilon) + math.exp(epsilon) * delta
        return min(1.0, (rest - (1 - rest) * math.expm1(-self.before)) * (1 + _ROUNDING))


@dataclass(frozen=True, slots=True)
class _Side:
    """The items of one data set of the pair: of the one with the unit, or of the other."""

    items: Items
    before: bool


def shift_charges(charges: Iterable[Charge], squared_mu: float) -> tuple[Charge, ...]:
    """Returns the charges with a Gaussian of a given μ², at least 0, instead of all events that have items."""
    rest = [charge for charge in charges if charge.event.items() is None]
    return (*rest, Charge(GaussianShift(squared_mu), 1)) if squared_mu > 0 else tuple(rest)


Box = tuple[tuple[int, int], ...]


def worst_epsilon(
    items: Sequence[Items], relation: Neighbouring, delta: float, epsilon_of: Callable[[float, float], Answer]
) -> Answer:
    """Returns ε at δ in the worst case; `epsilon_of(squared_mu, delta)` is that of everything else and a Gaussian.

    Guarantees: an upper bound; at most 2e-5 of ε above the exact maximum wherever `epsilon_of` is exact, and where ε is
    more than all the `leak` together.
    """
    asked = cache(epsilon_of)

    def bound(case: ItemBox) -> list[Answer]:
        inner = case.inner_delta(delta)
        answer = asked(case.squared_mu, inner) if inner > 0 else Answer(math.inf, "pld")
        return [Answer(case.outer_epsilon(answer.value), answer.accountant, answer.at_edge)]

    return _largest(items, relation, bound, _EPSILON_ROOM)[0]


def worst_deltas(
    items: Sequence[Items],
    relation: Neighbouring,
    epsilons: Sequence[float],
    deltas_of: Callable[[float, tuple[float, ...]], list[Answer]],
) -> list[Answer]:
    """Returns δ at each ε in the worst case; `deltas_of(squared_mu, epsilons)`, of every ε >= 0, is that of everything
    else and a Gaussian.

    Guarantees: upper bounds, at most 1e-4 of each above the exact maximum wherever `deltas_of` is exact.
    """

    asked = cache(deltas_of)

    def bound(case: ItemBox) -> list[Answer]:
        inner = [case.inner_epsilon(e) for e in epsilons]
        answers = asked(case.squared_mu, tuple(abs(e) for e in inner))
        return [
            Answer(case.outer_delta(e, answer.value), answer.accountant, answer.at_edge)
            for e, answer in zip(inner, answers, strict=True)
        ]

    return _largest(items, relation, bound, _DELTA_ROOM) if epsilons else []


def _directions(items: Sequence[Items], relation: Neighbouring) -> list[list[_Side]]:
    """Returns the sides of the pair that have the unit's items: one of them if a unit is added or removed, both if it
    is replaced."""
    before, after = ([_Side(part, is_before) for part in items] for is_before in (True, False))
    return [before + after] if relation is Neighbouring.REPLACE_ONE else [before, after]


def _case(sides: Sequence[_Side], box: Box) -> ItemBox:
    def leaked(before: bool, end: int) -> float:
        return math.fsum(
            ends[end] * side.items.leak for side, ends in zip(sides, box, strict=True) if side.before is before
        )

    moved = math.fsum(
        (side.items.count - low) * side.items.squared_mu for side, (low, _) in zip(sides, box, strict=True)
    )
    return ItemBox(leaked(True, 0), leaked(True, 1), leaked(False, 1), moved)


def _largest(
    items: Sequence[Items], relation: Neighbouring, bound: Callable[[ItemBox], list[Answer]], room: float
) -> list[Answer]:
    """Returns the largest cost over all cases, by branch and bound."""
    directions = _directions(items, relation)
    boxes: list[tuple[list[_Side], Box]] = []
    attained: list[Answer] = []
    for sides in directions:
        attained = _larger(attained, bound(_case(sides, tuple((0, 0) for _ in sides))))
        boxes += [(sides, part) for part in _split(sides, tuple((0, side.items.count) for side in sides))]
    result, asked = attained, 0
    while boxes:
        sides, box = boxes.pop()
        asked += 1
        limits = bound(_case(sides, box))
        is_point = all(low == high for low, high in box)
        if is_point:
            attained = _larger(attained, limits)
        within = all(f.value <= a.value * (1 + room) for f, a in zip(limits, attained, strict=True))
        if is_point or within or asked >= _MAX_BOUNDS:
            result = _larger(result, limits)
            continue
        attained = _larger(attained, bound(_case(sides, tuple((high, high) for _, high in box))))
        boxes += [(sides, part) for part in _split(sides, box)]
    return _larger(result, attained)


def _split(sides: Sequence[_Side], box: Box) -> list[Box]:
    """Splits a box in two halves, along the side that leaks most; the case where all items are shared, often the worst,
    is split off first."""

    def slack(index: int) -> tuple[bool, float]:
        low, high = box[index]
        return sides[index].before and high > low, (high - low) * sides[index].items.leak

    at = max(range(len(box)), key=lambda index: (box[index][1] > box[index][0], *slack(index)))
    low, high = box[at]
    if low == high:
        return [box]
    middle = 0 if low == 0 else (low + high) // 2
    return [(*box[:at], ends, *box[at + 1 :]) for ends in ((low, middle), (middle + 1, high))]


def _larger(some: list[Answer], others: list[Answer]) -> list[Answer]:
    if not some:
        return others
    return [max(pair, key=lambda answer: answer.value) for pair in zip(some, others, strict=True)]
