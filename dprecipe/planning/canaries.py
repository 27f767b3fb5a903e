"""Checks of canaries in a recipe: whether its run can have them, their cost, and the number named. No data is read."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dprecipe.contract.plan import Assumption, Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Finding, Severity
from dprecipe.language.audit import MIN_CANARIES
from dprecipe.language.words import join_with_or
from dprecipe.privacy.audit.naming import Naming, choose_naming
from dprecipe.recipe.root import Recipe

LARGE_SHARE = 0.05
"""Share of the units that batches are drawn from; beyond it, canaries cost so much that a warning is due."""


def check_canaries(recipe: Recipe) -> Iterator[Finding]:
    """Checks that the mechanism has canaries of this kind (P225), and that they are few (P226)."""
    block, mechanism = recipe.audit, mechanism_of(recipe.mechanism.kind)
    if block is None or block.canaries is None:
        return
    if block.canary not in mechanism.canaries:
        other = (
            f"set audit.canary to {join_with_or(mechanism.canaries)}, or remove audit.canaries"
            if mechanism.canaries
            else "remove audit.canaries"
        )
        yield Finding(
            "P225",
            f"{recipe.mechanism.kind} has no {block.canary} canaries: it shows nothing that could be scored",
            other,
            "audit.canary" if mechanism.canaries else "audit.canaries",
        )
    share = block.canaries / (block.canaries + recipe.data.planned_units)
    if share > LARGE_SHARE:
        few = math.floor(LARGE_SHARE * recipe.data.planned_units)
        fewer = f"set audit.canaries to {few} or fewer" if few >= MIN_CANARIES else "remove audit.canaries"
        yield Finding(
            "P226",
            f"{block.canaries:,} canaries are {share:.0%} of all units: that part of each batch teaches nothing",
            f"{fewer}, or accept what they cost",
            "audit.canaries",
            severity=Severity.WARNING,
        )


def assume_canaries(recipe: Recipe) -> tuple[Assumption, ...]:
    """Returns the assumptions of a run with canaries."""
    block = recipe.audit
    if block is None or block.canaries is None:
        return ()
    text = (
        f"batches are drawn from {block.canaries} further synthetic units; each is in the run by a secret coin, "
        "and what is published of them follows from noisy sums and coins"
    )
    return (Assumption("canaries", text, "code"),)


def canaries_of(plan: Plan, canary: str | None = None) -> int:
    """Returns the number of canaries that a run has, of this kind or of any."""
    block = plan.audit
    if block is None or block.canaries is None or canary not in (None, block.canary):
        return 0
    return block.canaries


def naming_of(plan: Plan) -> Naming:
    """Returns the number of canaries that are named in; as many are named out.

    Guarantees: a function of the plan alone.
    """
    if plan.audit is None or plan.audit.canaries is None:
        raise ValueError("a plan without canaries")
    guarantee = plan.guarantee
    return choose_naming(plan.audit.canaries, guarantee.epsilon, guarantee.delta, plan.audit.confidence)
