"""One event that stays hidden until its end: charged once, however many attempts it takes.

| what earlier attempts left | what this one does |
|---|---|
| nothing | reserves the event, draws, settles it |
| the event, reserved and not settled | carries it, draws again or goes on, settles it |
| the event, settled | draws nothing |

An account with which the event was settled admits no attempt that would carry it: its end was seen.
"""

from __future__ import annotations

from collections.abc import Callable

from dprecipe.contract.plan import Plan
from dprecipe.faults import BudgetSpent
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.ledger import Ledger, LedgerWriter


def is_settled(event: Event, before: Ledger | None) -> bool:
    """Returns True if an earlier attempt came to the event's end: nothing is drawn for it again."""
    return before is not None and any(charge.event == event for charge in before.settled)


def find_carried(before: Ledger | None) -> Event | None:
    """Returns the event that the next attempt carries: the ledger counts it as spent, and it is yet to be drawn."""
    last = () if before is None else before.unsettled[-1:]
    if before is None or not last or last != before.charges[-1:]:
        return None
    return last[0].event if last[0].count == 1 and last[0].event.hides_iterates else None


def is_reserved(event: Event, before: Ledger | None) -> bool:
    """Returns True if an earlier attempt reserved the event last, and did not settle it: the next one carries it."""
    return find_carried(before) == event


def check_affordable(plan: Plan, event: Event, before: Ledger | None) -> None:
    """Checks that the budget holds the event, or that it is reserved already.

    Raises:
        BudgetSpent: it does not.
    """
    if is_settled(event, before) or is_reserved(event, before):
        return
    if not plan.budget.holds([*(() if before is None else before.charges), Charge(event, 1)]):
        raise BudgetSpent(
            "the budget can't hold this run any more: something was charged and lost", "start again in another folder"
        )


def spend_once(ledger: LedgerWriter, event: Event, draw: Callable[[], None]) -> None:
    """Reserves the event or carries it, calls `draw`, and settles it; does nothing where it is settled.

    Guarantees: the event is in the ledger, on disk, before `draw` begins. What it raises leaves the event reserved,
    which counts as spent, and which the next attempt carries.

    Raises:
        RunFailed: the disk refuses.
    """
    if is_settled(event, ledger.before):
        return
    if is_reserved(event, ledger.before):
        ledger.carry(event)
    else:
        ledger.reserve(event, 1)
    draw()
    ledger.settle(event, 1)
