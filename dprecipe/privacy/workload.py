"""Charges as the accountants see them: one unsampled Gaussian, and each other event once with its count."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Event, event_fields
from dprecipe.privacy.profile import Profile
from dprecipe.privacy.worst_case import Items


@dataclass(frozen=True, slots=True)
class Workload:
    """All that a list of charges releases, in the order-free form that composition allows.

    `mu` is the sensitivity over the standard deviation of all unsampled Gaussians, composed, under `neighbouring`.
    `parts` has every other event that composes, once each, in a canonical order. `whole` has the events that do not
    compose, or that are alone (`Event.profile`). `neighbouring` is the relation all of them are accounted under
    (`Event.accounted_under`), `requested` the one that was asked for.
    """

    mu: float
    parts: tuple[Charge, ...]
    neighbouring: Neighbouring
    requested: Neighbouring
    whole: tuple[Charge, ...] = ()

    @property
    def steps(self) -> int:
        """The number of events that compose, unsampled Gaussians excluded."""
        return sum(part.count for part in self.parts)

    @property
    def items(self) -> tuple[Items, ...]:
        """The items of the events whose cost depends on the neighbouring data sets (`Event.items`)."""
        contributions = [(part.event.items(), part.count) for part in self.parts]
        return tuple(replace(items, count=items.count * count) for items, count in contributions if items is not None)

    @property
    def ever_sampled(self) -> float:
        """Probability that a given unit takes part in any event but the unsampled Gaussians, rounded up."""
        if self.whole or any(part.event.participation == 1 for part in self.parts):
            return 1.0
        logs = math.fsum(part.count * math.log1p(-part.event.participation) for part in self.parts)
        return min(1.0, -math.expm1(logs) * (1 + 1e-12))

    @property
    def ever_full(self) -> float:
        """Upper bound on the probability that any batch reaches its maximum size."""
        return min(1.0, math.fsum(part.count * part.event.full_chance for part in self.parts))

    @property
    def max_loss(self) -> float:
        """The largest loss of any outcome when a unit is added or removed, rounded up; infinite if one event's is."""
        if self.mu > 0 or self.whole:
            return math.inf
        return math.fsum(part.count * part.event.max_loss for part in self.parts) * (1 + 1e-12)

    @property
    def has_losses(self) -> bool:
        """True if every part has a privacy-loss distribution."""
        return all(part.event.has_losses for part in self.parts)

    @property
    def exact_losses(self) -> bool:
        """True if the distribution of every part is no looser than its Rényi curve."""
        return all(part.event.exact_losses for part in self.parts)

    @property
    def exact_curves(self) -> bool:
        """True if the Rényi curve of every part is no looser than its distribution."""
        return all(part.event.exact_curve for part in self.parts)

    @property
    def needs_group_privacy(self) -> bool:
        """True if replacing a unit is accounted by group privacy (`Event.needs_group_privacy`)."""
        return any(part.event.needs_group_privacy(self.neighbouring) for part in self.parts)

    @property
    def gaussian(self) -> bool:
        """True if all events are unsampled Gaussians, so that `mu` describes everything."""
        return not self.parts and not self.whole

    @property
    def dominating_mu(self) -> float | None:
        """μ of a Gaussian mechanism that costs no less than everything, at any ε; None where none is known."""
        squares = [self.mu**2]
        for part in self.parts:
            profile = part.event.profile()
            mu = None if profile is None else profile.mu()
            if mu is None:
                return None
            squares.append(part.count * mu**2)
        return None if self.whole else math.sqrt(math.fsum(squares))

    @property
    def lone_profile(self) -> tuple[Profile, int] | None:
        """The profile and count of the only event, if that event does not compose and its profile holds for the
        requested relation. Together with other events no bound is known."""
        if len(self.whole) != 1 or self.mu or self.parts:
            return None
        profile, count = self.whole[0].event.profile(), self.whole[0].count
        return None if profile is None or profile.relation != self.requested else (profile, count)

    @property
    def bounded(self) -> bool:
        """True if any bound is known."""
        if self.whole:
            return self.lone_profile is not None
        return all(part.event.is_bounded(self.neighbouring) for part in self.parts)

    @property
    def empty(self) -> bool:
        return self.mu == 0 and self.gaussian


def summarise_charges(charges: Iterable[Charge], neighbouring: Neighbouring) -> Workload:
    """Reduces charges to what composition needs.

    Unsampled Gaussians compose to one with μ = sqrt(Σ μ_i²). Equal events are counted together. The result does not
    depend on the order. Charges with count 0 are skipped. An event with a profile is a part like any other if there are
    others, and it composes under the requested relation.

    Source: Dong, Roth & Su 2022, Corollary 3.3.

    Raises:
        TypeError: a charge of something that is not an event.
    """
    counts: dict[Event, int] = {}
    for charge in charges:
        if not isinstance(charge.event, Event):
            raise TypeError(f"no accountant knows the event {charge.event!r}")
        if charge.count:
            counts[charge.event] = counts.get(charge.event, 0) + charge.count
    requested = Neighbouring(neighbouring)
    whole = [event for event in counts if _stands_alone(event, len(counts), requested)]
    relation = requested if whole else relation_of_all(counts, requested)
    squares: list[float] = []
    parts: list[Event] = []
    for event, count in counts.items():
        square = event.squared_mu(count, relation)
        if square is not None:
            squares.append(square)
        elif event not in whole:
            parts.append(event)
    return Workload(
        math.sqrt(math.fsum(squares)),
        tuple(Charge(event, counts[event]) for event in sorted(parts, key=_place)),
        relation,
        requested,
        tuple(Charge(event, counts[event]) for event in sorted(whole, key=_place)),
    )


def _stands_alone(event: Event, kinds: int, requested: Neighbouring) -> bool:
    """Returns True if an event is assessed by its profile; `kinds`: the number of different events."""
    profile = event.profile()
    return profile is not None and (kinds == 1 or not event.composes or profile.relation != requested)


def relation_of_all(events: Iterable[Event], requested: Neighbouring) -> Neighbouring:
    """Returns the relation under which events that compose are accounted: replace-one if any event needs it. A bound
    under replace-one also holds for the events that need only add-or-remove-one."""
    under = {event.accounted_under(requested) for event in events}
    return Neighbouring.REPLACE_ONE if Neighbouring.REPLACE_ONE in under else Neighbouring.ADD_OR_REMOVE_ONE


def _place(event: Event) -> tuple[object, ...]:
    """Returns the sort key of an event: equal charges in any order give the same floating-point sums."""
    values = event_fields(event).values()
    fields = tuple(repr(v) if isinstance(v, tuple) and v and isinstance(v[0], dict) else v for v in values)
    return (not event.integrates, not event.has_losses, event.participation, event.kind, fields)


def uncap_charges(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """Returns the same charges without maximum batch sizes."""
    return tuple(Charge(charge.event.uncapped(), charge.count) for charge in charges)


def shrink_charges(charges: Iterable[Charge], fewer: int, relation: Neighbouring) -> tuple[Charge, ...] | None:
    """Returns charges that cost no less in data sets with up to `fewer` units less (`Event.among_fewer`); None where
    none are known for one of them."""
    shrunk = []
    for charge in charges:
        event = charge.event.among_fewer(fewer, relation)
        if event is None:
            return None
        shrunk.append(Charge(event, charge.count))
    return tuple(shrunk)


def unamplify_charges(charges: Iterable[Charge], relation: Neighbouring) -> tuple[Charge, ...]:
    """Returns the same charges as if everyone knew who takes part (`Event.unamplified`)."""
    return tuple(Charge(charge.event.unamplified(relation), charge.count) for charge in charges)
