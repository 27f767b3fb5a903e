"""Checks of the charges that a run of votes can have made.

Where votes decide which queries are answered, the cost of what ran is not a bound that was known in advance. A filter
limits the run, and the run is charged all that the filter allows. So the charges of such a run add up to exactly the
filter's limit, whatever was answered and however often it crashed. A smaller sum would be the reading of an odometer,
not a guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType

from dprecipe.contract.facts import NO_MODEL, BudgetFacts
from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.theory.filter import sum_filter
from dprecipe.privacy.events import Charge, Event

ROUNDING = 1e-11
"""Relative tolerance between the charges and their filter's limit."""


def count_charges(charges: Sequence[Charge], kind: type[Event] | UnionType) -> int:
    """Counts the events of one kind, or of several."""
    return sum(charge.count for charge in charges if isinstance(charge.event, kind))


def is_of_votes(event: Event) -> bool:
    """Tells if a run's filter counts the event. It counts neither paid steps of preprocessing, which come before the
    votes, nor the published cost of votes."""
    return isinstance(event, NoisyMax | NoisyThreshold | FilterRest)


def count_queries(charges: Sequence[Charge]) -> int:
    """Counts the queries that were put: checks, where there are any, else answers."""
    return count_charges(charges, NoisyThreshold) or count_charges(charges, NoisyMax)


def is_filtered(plan: Plan) -> bool:
    """Tells if a filter decides when the run ends, so that its charges are not those of the plan."""
    return plan.as_plan_of(PatePlan).filter_limit is not None


def publishes_cost(plan: Plan) -> bool:
    """Tells if the run publishes what its votes cost, with noise."""
    return plan.as_plan_of(PatePlan).publication is not None


def find_contradictions(plan: Plan, charges: Sequence[Charge], budget: BudgetFacts) -> list[str]:
    """Returns the reasons why no run under the plan's filter can have charged these events and ended as stated."""
    votes = [charge for charge in charges if is_of_votes(charge.event)]
    planned, limit, total = plan.as_plan_of(PatePlan), _limit(plan), sum_filter(votes)
    path = "events.run_length"
    lines = []
    if not abs(total - limit) <= ROUNDING * limit:
        less = "less" if total < limit else "more"
        lines.append(f"{path}: {less} than the filter's limit: Σ μ² = {total!r}, the run is charged {limit!r}")
    rests = [index for index, charge in enumerate(votes) if isinstance(charge.event, FilterRest)]
    if rests and (rests != [len(votes) - 1] or votes[-1].count != 1):
        lines.append(f"{path}: what a filter has left is charged once, when the votes have ended")
    once, max_answers = budget.attempts == 1, planned.answers
    checks, answers = count_charges(votes, NoisyThreshold), count_charges(votes, NoisyMax)
    for name, number, allowed in (
        ("queries than are planned", checks, plan.length.steps),
        ("answers than are planned", answers, max_answers),
        ("answers than queries", answers, checks),
    ):
        if once and number > allowed:  # after a crash, what was lost is paid for again, up to the filter's limit
            lines.append(f"{path}: more {name}: {number:,} of {allowed:,}")
    costs = count_charges(charges, SanitisedCost)
    if publishes_cost(plan) and budget.stop_reason != NO_MODEL and (costs != 1 if once else costs < 1):
        lines.append(f"{path}: a noisy cost is published once, and charged")
    if once and not lines:
        ended = checks >= plan.length.steps or answers >= max_answers
        if budget.stop_reason == "completed" and not ended:
            lines.append("budget.stop_reason: neither all queries were put nor all answers given: not completed")
        if budget.stop_reason == "budget" and (ended or _allows_another(plan, votes)):
            lines.append("budget.stop_reason: the filter held another query: it did not stop this run")
    return lines


def _limit(plan: Plan) -> float:
    """Returns the μ² at which the run stops."""
    limit = plan.as_plan_of(PatePlan).filter_limit
    if limit is None:
        raise ValueError("no filter decides when the run ends")
    return limit


def _allows_another(plan: Plan, votes: Sequence[Charge]) -> bool:
    paid = [charge for charge in votes if not isinstance(charge.event, FilterRest)]
    another = [Charge(event, 1) for event in plan.as_plan_of(PatePlan).next_votes(count_queries(paid))]
    return sum_filter([*paid, *another]) <= _limit(plan) * (1 - ROUNDING)
