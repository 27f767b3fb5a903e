"""Checks that the release of a tuned run would verify, before anything is spent.

`verify` accepts a claim only where the cross-check accountant computes about the same ε from the events alone. For one
run of a mechanism it does. For the best of several it needs the distribution of a run, which not every event has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dprecipe.contract.plan import Plan
from dprecipe.faults import Finding
from dprecipe.privacy.events import Charge
from dprecipe.recipe.root import Recipe


def find_unsupported(recipe: Recipe, own: Sequence[Charge]) -> list[Finding]:
    """Finds events of one run, among its charges `own`, for which the cross-check accountant has no distribution,
    whatever their numbers."""
    from dprecipe.privacy.questions import SelectedRuns
    from dprecipe.privacy.tuning.recheck import can_ask

    tuning = recipe.tuning
    if tuning is None:
        return []
    questions = {charge.event.kind: charge.event.cross_check() for charge in own}
    kinds = [kind for kind, asked in questions.items() if not can_ask(SelectedRuns(((asked, 1),), "", 1.0, None))]
    if not kinds:
        return []
    return [
        Finding(
            "P189",
            f"the cross-check accountant has no distribution of {kinds[0]} events, and the best of several runs of "
            "them has a release that nobody could verify",
            "set mechanism.noise to {family: gaussian, multiplier: auto}, or remove tuning",
            "mechanism.noise",
        )
    ]


def find_unverifiable(plan: Plan) -> list[Finding]:
    """Finds a tuned plan whose claim the cross-check does not confirm; takes seconds."""
    if plan.tuning is None:
        return []
    from dprecipe.privacy import accountants, cross_check

    budget, claimed = plan.budget, plan.guarantee.epsilon
    relative, absolute = max(charge.event.cross_check_tolerance for charge in plan.events)
    answer = cross_check.ask_library(plan.events, budget.delta, budget.neighbouring)
    if answer.name == "dp_accounting.pld":
        if answer.epsilon <= claimed * (1 + relative) + absolute:
            return []
        found = f"finds no less than ε = {answer.epsilon:.5g}"
    else:
        rdp = accountants.epsilon(plan.events, budget.delta, budget.neighbouring, "rdp")
        if math.isfinite(answer.epsilon) and abs(answer.epsilon - rdp) <= 0.02 * rdp:
            return []
        found = "has no bound for these events"
    return [
        Finding(
            "P189",
            f"the cross-check accountant {found}, and no release with the claim of {claimed:g} would verify",
            "set tuning.runs.kind to negative_binomial, or take more steps with more noise",
            "tuning.runs",
        )
    ]
