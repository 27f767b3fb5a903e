"""How a run can have ended: what its certificate says of steps charged, settled and trained, held against its plan.

The gate takes the plan's events in order, from the first one that the model lacks. It reserves them in blocks, and a
crash loses at most one block. The plan fits its own budget, so `budget` ends a run only where the next event is one
more than is planned, which a crash alone can bring about, and where the budget does not hold it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from dprecipe.faults import Fault
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.privacy import accountants, rounding
from dprecipe.privacy.events import Charge, Event
from dprecipe.release.schema import Predicate

BLOCKS = 50
"""No block is longer than this part of the run, rounded up: `training.gate`, and what reserves blocks of its own."""
LONG = 50_000
PRECISION = 2e-5
"""Beyond `LONG` events `calibrate.calibrate_count` may stop this part short of what the budget holds."""


def find_impossible_end(stated: Predicate, plan: Plan) -> list[str]:
    """Why no run of the plan can have settled and trained what its certificate says, and ended as it says."""
    budget, sampling = stated.budget, stated.sampling
    trained, planned, charged = sampling.steps_trained, plan.length.steps, sampling.steps_charged
    part = mechanism_of(plan.mechanism).certificate
    if (trained is None) != part.hides_iterates:
        return ["sampling.steps_trained: null in runs whose iterates are hidden, and in no others"]
    problems = []
    longest = max(1, math.ceil(part.count_reservable(plan) / BLOCKS))
    if budget.events_reserved_unsettled > (budget.attempts - 1) * longest:
        problems.append(
            f"budget.events_reserved_unsettled: an attempt that crashes leaves at most {longest:,} of this plan's "
            f"events unsettled, and the last attempt none"
        )
    if trained is None:
        return problems
    if trained > charged:
        problems.append("sampling.steps_trained: more than were charged")
    if trained > planned:
        problems.append("sampling.steps_trained: more than are planned")
    if budget.attempts == 1 and trained != charged:
        problems.append("sampling.steps_trained: a run of one attempt loses none of the steps it is charged for")
    over = part.may_end_early(stated.mechanism)
    if budget.stop_reason == "completed" and trained < planned and not over:
        problems.append("sampling.steps_trained: fewer than are planned, in a run that completed")
    return problems


def early_stop(stated: Predicate, plan: Plan, charges: Iterable[Charge]) -> list[str]:
    """Why the budget can't have stopped this run."""
    trained, budget = stated.sampling.steps_trained, plan.budget
    part = mechanism_of(plan.mechanism).certificate
    if stated.budget.stop_reason != "budget" or part.is_adaptive(plan) or trained is None:
        return []  # what a limit held is asked where its charges are
    where = "budget.stop_reason: the budget did not stop this run"
    following = _following(plan, trained)
    if following is None:
        return [f"{where}: the model has all the steps planned"]
    after, planned = _counted(charges), _counted(plan.events)
    if not _before(plan, trained) <= after:
        return ["sampling.steps_trained: steps are in the model that were not charged"]
    after[following] += 1
    if after <= planned:
        return [f"{where}: its next event is one of those planned, which fit the budget; events are missing"]
    # What is charged beside the steps is set aside for, whatever else is charged.
    after |= Counter({event: count for event, count in planned.items() if not part.count_steps(event)})
    if after[following] > LONG:
        after[following] += math.ceil(PRECISION * after[following])
    try:
        epsilon = accountants.epsilon(
            [Charge(event, count) for event, count in after.items()],
            budget.delta,
            budget.neighbouring,
            budget.accountant,
        )
    except (Fault, ValueError, ArithmeticError):
        return []  # the recomputed claim says why
    if rounding.round_up(epsilon) <= budget.epsilon:
        return [f"{where}: the budget held another event; events are missing"]
    return []


def _following(plan: Plan, trained: int) -> Event | None:
    """The event that a run takes next whose model has so many steps."""
    part = mechanism_of(plan.mechanism).certificate
    for charge in _steps(plan):
        steps = charge.count * part.count_steps(charge.event)
        if trained < steps:
            return charge.event
        trained -= steps
    return None


def _before(plan: Plan, trained: int) -> Counter[Event]:
    """The events of the first so many steps of the plan."""
    counts: Counter[Event] = Counter()
    part = mechanism_of(plan.mechanism).certificate
    for charge in _steps(plan):
        each = part.count_steps(charge.event)
        events = min(charge.count, -(-trained // each))
        counts[charge.event] += events
        trained -= events * each
        if trained <= 0:
            break
    return counts


def _steps(plan: Plan) -> list[Charge]:
    part = mechanism_of(plan.mechanism).certificate
    return [charge for charge in plan.events if part.count_steps(charge.event)]


def _counted(charges: Iterable[Charge]) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for charge in charges:
        counts[charge.event] += charge.count
    return counts
