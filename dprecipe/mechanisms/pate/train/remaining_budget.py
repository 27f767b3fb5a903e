"""What a run of PATE may still spend, asked before noise is drawn, and the ledger that records it.

If every query is answered, the plan's own events fit, and after a crash further ones as long as the budget covers them.
If votes decide which queries are answered, the plan's Gaussian filter limits them. At the end the rest of the filter is
charged, so the ledger adds up to the filter's limit, whatever was answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import final

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.charges import is_of_votes
from dprecipe.mechanisms.pate.events import FilterRest, SanitisedCost
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.theory.filter import GaussianFilter
from dprecipe.privacy.events import Charge, Event, count_by_event
from dprecipe.privacy.ledger import LedgerWriter


@final
class RemainingBudget:
    """The budget that a run has left. It reserves and settles events in the ledger."""

    def __init__(self, plan: Plan, ledger: LedgerWriter, charged: Iterable[Charge]) -> None:
        """`charged`: what earlier attempts, and paid steps of preprocessing, have spent."""
        limit = plan.as_plan_of(PatePlan).filter_limit
        self._filter = None if limit is None else GaussianFilter(limit)
        self._planned = count_by_event(plan.events)
        self._budget = plan.budget
        self._ledger = ledger
        self._charged = count_by_event(charged)

    @property
    def charged(self) -> tuple[Charge, ...]:
        """What counts as spent, in all attempts."""
        return tuple(Charge(event, count) for event, count in self._charged.items())

    def count(self, event: Event) -> int:
        """Counts those of these events that are spent."""
        return self._charged[event]

    def holds(self, wanted: Iterable[Charge]) -> bool:
        """Tells if all these events still fit."""
        after = self._charged + count_by_event(wanted)
        if self._filter is not None:
            return self._filter.holds(_votes(after)) and _others(after) <= _others(self._planned)
        charges = [Charge(event, count) for event, count in after.items()]
        if after <= self._planned and self._budget.is_reserved(charges):
            return True
        return self._budget.holds([Charge(event, count) for event, count in (after | _others(self._planned)).items()])

    def reserve(self, event: Event, count: int) -> str:
        """Record events that are about to run; return the digest of their ledger line."""
        self._ledger.reserve(event, count)
        self._charged[event] += count
        return self._ledger.head

    def settle(self, event: Event, count: int) -> None:
        """Record that they ran."""
        self._ledger.settle(event, count)

    def charge_rest(self) -> None:
        """Charge the rest of the filter's limit; nothing fits after that."""
        if self._filter is None:
            return
        rest: FilterRest | None = self._filter.rest(_votes(self._charged))
        if rest is not None:
            self.reserve(rest, 1)
            self.settle(rest, 1)


def _others(counts: Counter[Event]) -> Counter[Event]:
    """What is published beside the votes."""
    return Counter({event: count for event, count in counts.items() if isinstance(event, SanitisedCost)})


def _votes(counts: Counter[Event]) -> list[Charge]:
    """The events that a filter counts."""
    return [Charge(event, count) for event, count in counts.items() if is_of_votes(event)]
