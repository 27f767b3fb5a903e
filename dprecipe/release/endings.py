"""The endings of a run: compares the steps charged, settled and trained in a certificate with its plan.

The gate takes the plan's events in order, starting from the first one that the model lacks. It reserves them in blocks,
and a crash loses at most one block. The plan fits its own budget. So the stop reason `budget` is possible only where
the next event exceeds the plan, which takes a crash, and where the budget does not hold that event, or the run's
reservation in its account does not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Fault
from dprecipe.privacy import accountants, rounding
from dprecipe.privacy.events import Charge, Event, count_by_event, count_events
from dprecipe.release import charged_account, no_model, tuned
from dprecipe.release.schema import Predicate

BLOCKS = 50
"""A block has at most one in this number of the run's events, rounded up. See `dprecipe.training.run.gate`."""
LONG_RUN = 50_000
PRECISION = 2e-5
"""Beyond `LONG_RUN` events, `calibrate.calibrate_count` may stop this fraction short of what the budget holds."""


def find_impossible_end(stated: Predicate, plan: Plan) -> list[str]:
    """Explains why no run of the plan can have ended with the steps that the certificate states."""
    budget, sampling = stated.budget, stated.sampling
    trained, planned, charged = sampling.steps_trained, plan.length.steps, sampling.steps_charged
    part = mechanism_of(plan.mechanism).certificate
    if (trained is None) != tuned.hides_iterates(plan):
        return ["sampling.steps_trained: expected null exactly where only the last iterate or the best run is released"]
    problems = []
    blocks = [math.ceil(part.count_reservable(plan) / BLOCKS), *(count_events(stage.charges) for stage in plan.stages)]
    max_block = max(1, *blocks)
    if budget.events_reserved_unsettled > (budget.attempts - 1) * max_block:
        problems.append(
            f"budget.events_reserved_unsettled: a crashed attempt leaves at most {max_block:,} events of this plan "
            f"unsettled, and the last attempt none"
        )
    if no_model.has_no_model(stated):
        return problems  # the rest needs the charges: `no_model.find_impossible_end`
    if plan.tuning is not None and stated.tuning is not None and not stated.tuning.chosen:
        problems.append("tuning.chosen: a tuned run that has a model has chosen values")
    if trained is None:  # what is seen only at its end is released then, or not at all: its event can't be missing
        if budget.stop_reason != "completed":
            problems.append("budget.stop_reason: a run that did not complete has neither last iterate nor best run")
        if not budget.events_settled:
            problems.append("budget.events_settled: a last iterate or best run is released after its event is settled")
        return problems
    if trained > charged:
        problems.append("sampling.steps_trained: more steps than were charged")
    if trained > planned:
        problems.append("sampling.steps_trained: more steps than were planned")
    if budget.attempts == 1 and trained != charged:
        problems.append("sampling.steps_trained: a run of one attempt loses none of its charged steps")
    may_end_early = part.may_end_early(stated.mechanism)
    if budget.stop_reason == "completed" and trained < planned and not may_end_early:
        problems.append("sampling.steps_trained: fewer steps than planned, in a run that completed")
    return problems


def find_impossible_choice(stated: Predicate, plan: Plan) -> list[str]:
    """Explains why no run of the plan can have kept the iterate that the certificate states, or none."""
    kept, where = stated.data_access.evaluation.kept, "data_access.evaluation.kept"
    if plan.training.keep is None or no_model.has_no_model(stated):
        return [] if kept is None else [f"{where}: expected only where the recipe keeps the best iterate"]
    if kept is None:
        scored = stated.data_access.evaluation.released is not None
        return [f"{where}: expected, since the released model has a score"] if scored else []
    trained = stated.sampling.steps_trained or 0
    problems = [f"{where}.step: more steps than the run has"] if kept.step > trained else []
    if kept.looked_at > trained:
        problems.append(f"{where}.looked_at: more iterates than the run has")
    return problems


def check_budget_stop(stated: Predicate, plan: Plan, charges: Iterable[Charge]) -> list[str]:
    """Explains why the budget can't have stopped this run."""
    trained, budget = stated.sampling.steps_trained, plan.budget
    part = mechanism_of(plan.mechanism).certificate
    if stated.budget.stop_reason != "budget" or part.is_adaptive(plan) or trained is None:
        return []  # `CertificatePart.check_charges` checks these
    if not stated.is_own:
        return []  # a tighter accountant finds that more would have fitted; `verify` says that this was not checked
    where = "budget.stop_reason: the budget did not stop this run"
    next_event = _next_event(plan, trained)
    if next_event is None:
        return [f"{where}: the model has all planned steps"]
    charged, planned = count_by_event(charges), count_by_event(plan.events)
    if not _events_of_first(plan, trained) <= charged:
        return ["sampling.steps_trained: the model has steps that were not charged"]
    charged[next_event] += 1
    if charged <= planned:
        return [f"{where}: its next event is a planned one, which fits the budget; events are missing"]
    # The plan sets aside the cost of events other than steps.
    charged |= Counter({event: count for event, count in planned.items() if not part.count_steps(event)})
    if charged[next_event] > LONG_RUN:
        charged[next_event] += math.ceil(PRECISION * charged[next_event])
    try:
        epsilon = accountants.epsilon(
            [Charge(event, count) for event, count in charged.items()],
            budget.delta,
            budget.neighbouring,
            budget.accountant,
        )
    except (Fault, ValueError, ArithmeticError):
        return []  # recomputing the claim reports this
    if rounding.round_up(epsilon) <= budget.epsilon and not charged_account.stopped_it(
        stated.account, [Charge(event, count) for event, count in charged.items()]
    ):
        return [f"{where}: the budget left pays for another event; events are missing"]
    return []


def _next_event(plan: Plan, trained: int) -> Event | None:
    """Returns the event that comes next for a model with `trained` steps; None after the last."""
    part = mechanism_of(plan.mechanism).certificate
    for charge in _step_charges(plan):
        steps = charge.count * part.count_steps(charge.event)
        if trained < steps:
            return charge.event
        trained -= steps
    return None


def _events_of_first(plan: Plan, trained: int) -> Counter[Event]:
    """Returns the events of the plan's first `trained` steps."""
    counts: Counter[Event] = Counter()
    part = mechanism_of(plan.mechanism).certificate
    for charge in _step_charges(plan):
        steps_per_event = part.count_steps(charge.event)
        events = min(charge.count, -(-trained // steps_per_event))
        counts[charge.event] += events
        trained -= events * steps_per_event
        if trained <= 0:
            break
    return counts


def _step_charges(plan: Plan) -> list[Charge]:
    part = mechanism_of(plan.mechanism).certificate
    return [charge for charge in plan.events if part.count_steps(charge.event)]
