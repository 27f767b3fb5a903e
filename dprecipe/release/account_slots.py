"""A certificate's statement of slots: the part of the account's cap for them, and what its run took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StringConstraints, TypeAdapter

from dprecipe.account.entries import GROUP
from dprecipe.contract.facts import Probability
from dprecipe.contract.table import MECHANISMS
from dprecipe.language.base import Block, NonNegativeFloat, PositiveFloat
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.charge_shapes import charge_type
from dprecipe.privacy.events import Charge, charge_from_json

if TYPE_CHECKING:

    class SlotRun(Block):
        """Equal slots."""

else:
    SlotRun = charge_type() if MECHANISMS else None  # their events are known once they are

CLOSE = 1e-3
"""Largest relative excess of a part of a group over the whole: both are bounds, each computed for itself."""
SlotRuns = Annotated[tuple[SlotRun, ...], Field(max_length=10_000)]
SLOT_RUNS: TypeAdapter[Any] = TypeAdapter(SlotRuns)


class TakenSlots(Block):
    """The slots of a run. Whatever runs take of the group, together they are (epsilon, delta)-DP."""

    group: Annotated[str, StringConstraints(pattern=f"^{GROUP}$")]
    epsilon: PositiveFloat
    delta: Annotated[float, Field(gt=0, lt=1)]
    reserved: SlotRuns = Field(description="slots that the run held while it ran")
    counted: SlotRuns = Field(description="slots that it holds for good: they dominate its events")


class AccountSlots(Block):
    """The part of an account's cap that is kept for groups of slots; the filter has the rest."""

    epsilon: PositiveFloat
    delta: Probability
    groups_epsilon: NonNegativeFloat = Field(description="ε of all groups that were reserved, used or not")
    run: TakenSlots | None = Field(description="what this run took; null: it is charged to the filter")


def to_slot_runs(charges: Sequence[Charge]) -> SlotRuns:
    """Returns slots as a certificate states them."""
    runs: SlotRuns = SLOT_RUNS.validate_python(tuple(charge.to_json() for charge in charges))
    return runs


def to_charges(runs: SlotRuns) -> tuple[Charge, ...]:
    """Returns slots as events. Raises `ValueError`."""
    return tuple(charge_from_json(run.model_dump()) for run in runs)


def find_uncovered(stated: TakenSlots, charges: Sequence[Charge], neighbouring: Neighbouring) -> list[str]:
    """Finds those of a run's slots that do not dominate its events.

    Raises:
        ValueError: an event can't be read.
    """
    return [
        f"account.slots.run.{name}: slots that do not dominate the run's events"
        for name, runs in (("reserved", stated.reserved), ("counted", stated.counted))
        if not dominate(runs, charges, neighbouring)
    ]


def find_cheap(stated: TakenSlots, neighbouring: Neighbouring) -> list[str]:
    """Finds those of a run's slots that come to more than is stated of their whole group.

    Raises:
        ValueError: an event can't be read.
    """
    from dprecipe.account.groups import find_epsilon
    from dprecipe.privacy.filters.cost import NotInAccount

    problems = []
    for name, runs in (("reserved", stated.reserved), ("counted", stated.counted)):
        try:
            epsilon = find_epsilon(to_charges(runs), stated.delta, neighbouring)
        except NotInAccount:
            epsilon = float("inf")
        if not epsilon <= stated.epsilon * (1 + CLOSE):
            problems.append(f"account.slots.run.epsilon: less than what the {name} slots alone come to, {epsilon:g}")
    return problems


def dominate(runs: SlotRuns, charges: Sequence[Charge], neighbouring: Neighbouring) -> bool:
    """Returns True if these slots dominate all these events together. Raises `ValueError`."""
    from dprecipe.privacy.filters.cost import NotInAccount
    from dprecipe.privacy.filters.slots import SlotGroup

    try:
        SlotGroup(to_charges(runs), neighbouring).split(charges)
    except NotInAccount:
        return False
    return True
