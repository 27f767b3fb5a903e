"""Slots: events that are fixed beforehand, composed by their loss distributions, and used in any order or not at all.

A group of slots is a list of events, fixed when it is reserved. A run may take events from the group if each of its own
is dominated by one that it takes; what is left stays for later runs. Which run comes next, with which events, learning
rate or model, may depend on everything released before.

*Guarantees*: whatever runs take from a group, together they are (ε, δ)-DP for each point of the profile of all its
events composed. Let h_S(t) be the hockey-stick divergence at t of the product of the pairs of the slots S, l the loss
so far. The best an adversary can still reach is h_S(ε - l): with one slot i taken, E h_(S-i)(ε - l - l_i) = h_S(ε - l);
a pair that i dominates gives no more, nor does stopping; by induction from the last slot. The order does not matter,
since products commute. Together with runs under a filter: (ε_slots + ε_filter, δ_slots + δ_filter), by concurrent
composition.

A pair dominates another if that is post-processing of it (Blackwell):

- the sampled Gaussian of rate q and multiplier σ dominates every one of rates q' <= q and multipliers σ' >= σ: replace
  the output by fresh noise with chance 1 - q'/q, and add noise of variance σ'² - σ²; that maps both of the pair;
- Gaussians without sampling dominate those of the same or a smaller sum of μ²: one is a product of as many as wanted;
- every event dominates itself.

Source: Dong, Roth & Su 2022, and Zhu, Dong & Wang 2022 (fixed pairs, everything else adaptive); Vadhan & Wang 2021, Lyu
2022 (concurrent composition); docs/how-to/account.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Event, count_by_event, order_charges
from dprecipe.privacy.filters.cost import NotInAccount
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.privacy.rounding import round_up
from dprecipe.privacy.workload import relation_of_all

_ROUNDING = 1e-12
_MARGIN = 1e-8
"""A share of ε: more than an error `_ROUNDING` of a sum of μ² causes in it."""
_TOO_MUCH = "the slots that are left do not dominate the run"
_REMEDY = (
    "Give the run more noise, fewer steps or a smaller sampling rate; or charge it to the filter of the account: leave "
    "out `budget.slots`."
)


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """A group of events that were reserved together and are not yet taken.

    Raises:
        NotInAccount: no dominating pair of an event is known, or its cost depends on the neighbouring data sets.
    """

    charges: tuple[Charge, ...]
    neighbouring: Neighbouring

    def __post_init__(self) -> None:
        relation = relation_of_all((charge.event for charge in self.charges), self.neighbouring)
        for charge in self.charges:
            _check_pair(charge.event, relation)

    def epsilon(self, delta: float) -> float:
        """Returns ε of everything that can be taken from the group, at δ; six digits, rounded up.

        Raises:
            ValueError: δ outside (0, 1).
        """
        return round_up(self.find_epsilon(delta))

    def find_epsilon(self, delta: float) -> float:
        """Returns ε like `epsilon`, but not rounded."""
        from dprecipe.privacy.accountants import epsilon

        value = epsilon(self.charges, delta, self.neighbouring, "pld")
        return value * (1 + _MARGIN) + _MARGIN if any(charge.count for charge in self.charges) else 0.0

    def take(self, charges: Iterable[Charge]) -> SlotGroup:
        """Returns the group without the events that a run of these charges takes. Raises like `split`."""
        return self.split(charges)[1]

    def split(self, charges: Iterable[Charge]) -> tuple[SlotGroup, SlotGroup]:
        """Returns what a run of these charges takes from the group, and what is left. For each of its own events it
        takes one that dominates it, the least useful of those.

        Guarantees: what is taken dominates the run, and both parts together are dominated by the group.

        Raises:
            NotInAccount: not every event of the run is dominated by one that is left.
        """
        relation = relation_of_all((charge.event for charge in self.charges), self.neighbouring)
        wanted, left = count_by_event(charges), count_by_event(self.charges)
        if wanted and relation_of_all(wanted, self.neighbouring) is not relation:
            raise NotInAccount(_TOO_MUCH, _REMEDY)
        taken = _take_gaussians(wanted, left, relation)
        # Largest rates first: a slot whose rate dominates one event's dominates those of all that follow, so the one to
        # take is the slot with the most noise that still dominates.
        sampled = [event for event in wanted if isinstance(event, PoissonGaussian)]
        for one in sorted(sampled, key=lambda event: -event.sampling_rate):
            taken += _take_sampled(one, wanted, left)
        for event, count in wanted.items():
            if count > left[event]:
                raise NotInAccount(f"{_TOO_MUCH}: {count:,} more events of kind {event.kind} than are left", _REMEDY)
            left[event] -= count
            taken[event] += count
        return SlotGroup(order_charges(taken), self.neighbouring), SlotGroup(order_charges(left), self.neighbouring)


def _check_pair(event: Event, relation: Neighbouring) -> None:
    fixed = event.squared_mu(1, relation) is not None or (
        event.has_losses and event.items() is None and (event.profile() is None or event.composes)
    )
    if not fixed or not event.is_bounded(relation) or event.needs_group_privacy(relation) or event.full_chance:
        raise NotInAccount(
            f"an event of kind {event.kind} has no fixed dominating pair for {relation.value}",
            "Reserve the run under the filter of the account instead of a slot.",
        )


def _take_gaussians(wanted: Counter[Event], left: Counter[Event], relation: Neighbouring) -> Counter[Event]:
    """Takes unsampled Gaussians, by the sum of their μ²: equal ones first, then from all the others together, which
    leave one behind. Returns what was taken."""
    taken: Counter[Event] = Counter()
    for event in list(wanted):
        if event.squared_mu(1, relation) is not None:
            same = min(wanted[event], left[event])
            left[event] -= same
            wanted[event] -= same
            taken[event] += same
    need, have = (_sum_squares(events, relation) for events in (wanted, left))
    if not need:
        return taken
    if need > have * (1 + _ROUNDING):
        raise NotInAccount(_TOO_MUCH, _REMEDY)
    for events in (wanted, left):
        for event in [event for event in events if event.squared_mu(1, relation) is not None]:
            del events[event]
    moved = 4.0 if relation is Neighbouring.REPLACE_ONE else 1.0
    taken[Gaussian(math.sqrt(moved / need))] += 1
    if have - need > have * _ROUNDING:
        left[Gaussian(math.sqrt(moved / (have - need)) * (1 + _ROUNDING))] += 1
    return taken


def _sum_squares(events: Counter[Event], relation: Neighbouring) -> float:
    squares = [event.squared_mu(count, relation) for event, count in events.items() if count]
    return math.fsum(square for square in squares if square is not None)


def _take_sampled(event: PoissonGaussian, wanted: Counter[Event], left: Counter[Event]) -> Counter[Event]:
    slots = [
        slot
        for slot in left
        if isinstance(slot, PoissonGaussian)
        and slot.sampling_rate >= event.sampling_rate
        and slot.noise_multiplier <= event.noise_multiplier
    ]
    taken: Counter[Event] = Counter()
    for slot in sorted(slots, key=lambda slot: (-slot.noise_multiplier, slot.sampling_rate)):
        count = min(wanted[event], left[slot])
        wanted[event] -= count
        left[slot] -= count
        taken[slot] += count
    return taken
