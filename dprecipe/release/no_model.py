"""A run that has spent its budget, or cannot go on within it, and has no model.

| what there is nothing of | when the run ends so |
|---|---|
| all runs of a tuned run are lost | once all have ended: their event is settled, and none has a model |
| the result of a paid step is lost, before training | if the budget does not hold it again beside what is to come |
| what was released taught nothing: no label, or weights that are not finite | once training has ended |

The release then has a certificate, which claims what the ledger says was spent, metrics without a score, and a report.
It has no weights, no constants of preprocessing and no chosen values: nothing that was learned from a record.

Guarantees: the claim covers more than is released, since nothing of what was drawn is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dprecipe.contract.facts import NO_MODEL
from dprecipe.contract.plan import Plan
from dprecipe.contract.stages import PaidStage
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Fault
from dprecipe.privacy.events import Charge, count_by_event, count_events
from dprecipe.release.schema import Predicate

SENTENCE = (
    "Nothing was learned: no model came of what this run spent, and its budget holds no second try. There is no model "
    "in this release"
)


def has_no_model(stated: Predicate) -> bool:
    """Returns True if a certificate is of a run that ended without a model."""
    return stated.budget.stop_reason == NO_MODEL


def holds_again(plan: Plan, charged: Sequence[Charge], stage: PaidStage) -> bool:
    """Returns True if the budget holds a paid step again, together with all else that is charged: what was charged,
    the steps that were never charged, and what the run is charged as a whole (`MechanismPlan.indivisible`)."""
    together = count_by_event([*charged, *stage.charges])
    planned = count_by_event(plan.events)
    if together <= planned:
        return True
    coming = (count_by_event(plan.stage_charges) - together) + count_by_event(plan.indivisible)
    return plan.budget.holds([Charge(event, count) for event, count in (together + coming).items()])


def find_impossible_end(stated: Predicate, plan: Plan, charges: Sequence[Charge]) -> list[str]:
    """Explains why no run of the plan can have ended without a model after these charges; nothing for any other
    ending."""
    if not has_no_model(stated):
        return []
    where = "budget.stop_reason: this run can't have ended without a model"
    problems = []
    if stated.tensors:
        problems.append("tensors: a run that ended without a model releases none")
    if stated.data_access.evaluation.released is not None:
        problems.append("data_access.evaluation.released: a run that ended without a model has no score")
    own = count_by_event(charges) - count_by_event(plan.stage_charges)
    if plan.tuning is not None and own[plan.tuning.charge.event]:
        if not stated.budget.events_settled:
            problems.append(f"{where}: its runs have not ended")
        return problems
    if not count_by_event(charges).keys() <= count_by_event(plan.stage_charges).keys():
        steps = mechanism_of(plan.mechanism).certificate.count_steps_charged(charges)
        if stated.budget.attempts == 1 and steps < plan.length.steps:
            problems.append(f"{where}: training had begun, and had not ended")
        return problems
    if stated.budget.attempts < 2:
        return [*problems, f"{where}: one attempt draws each paid step and keeps its result"]
    if not stated.is_own:
        return problems  # a tighter accountant finds that more would have fitted
    try:
        if all(holds_again(plan, charges, stage) for stage in _list_charged(plan, charges)):
            problems.append(f"{where}: the budget holds every paid step that was charged once more")
    except (Fault, ValueError, ArithmeticError):
        pass  # recomputing the claim reports this
    return problems


def _list_charged(plan: Plan, charges: Sequence[Charge]) -> Iterable[PaidStage]:
    charged = count_by_event(charges)
    return [stage for stage in plan.stages if count_by_event(stage.charges) <= charged and count_events(stage.charges)]
