"""Groups of slots in an account: what each has left, and what a run takes from it and gives back.

| when | what becomes of slots |
|---|---|
| a run reserves | it takes slots that dominate what it may draw |
| a later attempt reserves | it takes more for what it may draw beyond all that was reserved before |
| settled, not final (interrupted, no model) | it keeps what it has |
| settled, final (completed, budget) | it keeps what dominates what was drawn; all, if nothing is seen before its end |
| void | it gives back all |

Source: dprecipe/privacy/filters/slots.py. A slot that is given back was not used: no outcome of it was seen, and the
decision rested on released values or on a public rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dprecipe.account.canonical import Fields
from dprecipe.account.entries import GROUP, SlotsAct, charges_to_json, read_charges
from dprecipe.account.facts import AccountFacts
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, count_by_event, order_charges
from dprecipe.privacy.filters.split import add_decimals

if TYPE_CHECKING:
    from dprecipe.privacy.filters.slots import SlotGroup

TEXT = r"(?s).{0,200}"


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group after its last entry. `charges`: as it was reserved; `left`: what no run holds. Whatever is taken from it
    is (`epsilon`, `delta`)-DP. `first`: the number of its entry."""

    group: str
    what: str
    charges: tuple[Charge, ...]
    left: tuple[Charge, ...]
    epsilon: float
    delta: float
    first: int

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "what": self.what,
            "events": charges_to_json(self.charges),
            "left": charges_to_json(self.left),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "first": self.first,
        }


@dataclass(frozen=True, slots=True)
class RunSlots:
    """The slots of a group that a run holds. `asked`: the most that it has reserved of each event, or, once it is
    settled for good, what it drew; `taken`: slots that dominate `asked`; `reserved`: those that it held while its last
    reservation was open."""

    group: str
    asked: tuple[Charge, ...] = ()
    taken: tuple[Charge, ...] = ()
    reserved: tuple[Charge, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "asked": charges_to_json(self.asked),
            "taken": charges_to_json(self.taken),
            "reserved": charges_to_json(self.reserved),
        }

    def cover(self, charges: Sequence[Charge], neighbouring: Neighbouring) -> bool:
        """Returns True if the slots held dominate all these charges together."""
        return not charges or _split(self.taken, charges, neighbouring) is not None


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """The totals of all groups of slots: their number, their ε and δ added up, and the number of runs that hold
    slots."""

    count: int = 0
    epsilon: float = 0.0
    delta: float = 0.0
    runs: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "epsilon": self.epsilon, "delta": self.delta, "runs": self.runs}


def add_group(facts: AccountFacts, groups: GroupTotals, epsilon: float, delta: float) -> GroupTotals:
    """Returns the totals with one more group.

    Raises:
        ValueError: it is no group, or exceeds the account's part for slots.
    """
    if facts.slots is None:
        raise ValueError("the account has no part for slots")
    if not (epsilon > 0 and delta > 0):
        raise ValueError("a group of no cost")
    whole = (add_decimals(groups.epsilon, epsilon), add_decimals(groups.delta, delta))
    if whole[0] > facts.slots.epsilon or whole[1] > facts.slots.delta:
        raise ValueError("more slots are reserved than the account's part for them holds")
    return GroupTotals(groups.count + 1, *whole, groups.runs)


def open_group(act: SlotsAct, seq: int, neighbouring: Neighbouring) -> GroupState:
    """Returns a new group, from which nothing is taken.

    Raises:
        ValueError: it is empty, or an event can't be a slot.
    """
    if not act.charges:
        raise ValueError("a group of no slots")
    if _make(act.charges, neighbouring) is None:
        raise ValueError("a group with an event that has no fixed dominating pair")
    return GroupState(act.group, act.what, act.charges, act.charges, act.epsilon, act.delta, seq)


def take_slots(
    group: GroupState, before: RunSlots | None, charges: Sequence[Charge], neighbouring: Neighbouring
) -> tuple[GroupState, RunSlots]:
    """Returns the group and the run's slots, once the run may draw all these charges.

    Raises:
        ValueError: what is left does not dominate it.
    """
    own = RunSlots(group.group) if before is None else before
    known = count_by_event(own.asked)
    asked = known | count_by_event(charges)
    more = order_charges(asked - known)
    if not more:
        return group, replace(own, reserved=own.taken)
    parts = _split(group.left, more, neighbouring)
    if parts is None:
        raise ValueError("takes slots that the group does not have")
    taken, left = parts
    held = join_slots(own.taken, taken.charges)
    return replace(group, left=left.charges), RunSlots(group.group, order_charges(asked), held, held)


def give_back(
    group: GroupState, own: RunSlots, drawn: Sequence[Charge], neighbouring: Neighbouring
) -> tuple[GroupState, RunSlots]:
    """Returns the group and the run's slots, once the run has ended and drawn these charges.

    Raises:
        ValueError: what the run holds does not dominate them.
    """
    if not drawn:
        return replace(group, left=join_slots(group.left, own.taken)), RunSlots(group.group)
    parts = _split(own.taken, drawn, neighbouring)
    if parts is None:
        raise ValueError("has drawn what its slots do not dominate")
    kept, rest = parts
    left = join_slots(group.left, rest.charges)
    return replace(group, left=left), replace(own, asked=order_charges(count_by_event(drawn)), taken=kept.charges)


def join_slots(first: Sequence[Charge], second: Sequence[Charge]) -> tuple[Charge, ...]:
    """Returns all slots of both, in one fixed order."""
    return order_charges(count_by_event((*first, *second)))


@lru_cache(maxsize=64)
def find_epsilon(charges: tuple[Charge, ...], delta: float, neighbouring: Neighbouring) -> float:
    """Returns ε of all these slots at δ, not rounded.

    Raises:
        NotInAccount: an event that can't be a slot.
    """
    from dprecipe.privacy.filters.slots import SlotGroup

    return SlotGroup(charges, neighbouring).find_epsilon(delta)


def _make(charges: Sequence[Charge], neighbouring: Neighbouring) -> SlotGroup | None:
    """Returns the group; None if an event can't be a slot."""
    from dprecipe.privacy.filters.cost import NotInAccount
    from dprecipe.privacy.filters.slots import SlotGroup

    try:
        return SlotGroup(tuple(charges), neighbouring)
    except NotInAccount:
        return None


def _split(
    slots: Sequence[Charge], charges: Sequence[Charge], neighbouring: Neighbouring
) -> tuple[SlotGroup, SlotGroup] | None:
    """Returns what a run of these charges takes of the slots, and what is left; None if the slots don't dominate the
    run."""
    from dprecipe.privacy.filters.cost import NotInAccount

    group = _make(slots, neighbouring)
    try:
        return None if group is None else group.split(charges)
    except NotInAccount:
        return None


def read_group(content: Mapping[str, Any]) -> GroupState:
    """Reads what `GroupState.to_json` wrote. Raises `ValueError`."""
    fields = Fields(content)
    state = GroupState(
        fields.text("group", GROUP),
        fields.text("what", TEXT),
        read_charges(fields.items("events")),
        read_charges(fields.items("left")),
        fields.number("epsilon"),
        fields.number("delta"),
        fields.whole("first", 0),
    )
    fields.end()
    return state


def read_run_slots(content: Mapping[str, Any]) -> RunSlots:
    """Reads what `RunSlots.to_json` wrote. Raises `ValueError`."""
    fields = Fields(content)
    own = RunSlots(
        fields.text("group", GROUP),
        read_charges(fields.items("asked")),
        read_charges(fields.items("taken")),
        read_charges(fields.items("reserved")),
    )
    fields.end()
    return own


def read_group_totals(fields: Fields) -> GroupTotals:
    """Reads what `GroupTotals.to_json` wrote. Raises `ValueError`."""
    groups = GroupTotals(
        fields.whole("count", 1), fields.number("epsilon"), fields.number("delta"), fields.whole("runs", 0)
    )
    fields.end()
    return groups
