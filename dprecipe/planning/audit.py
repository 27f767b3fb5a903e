"""Checks of the `audit` block and its canaries: whether a run can have them, their cost, and what they can show.

No data is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dprecipe.contract.plan import Assumption, Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Finding, Severity
from dprecipe.language.audit import MIN_CANARIES
from dprecipe.language.words import join_with_or
from dprecipe.noisy_sum.sampling import FixedOrderSampling
from dprecipe.privacy.audit.naming import Naming, choose_naming
from dprecipe.recipe.root import Recipe

if TYPE_CHECKING:
    from dprecipe.contract.plan import Plan


def check_audit(recipe: Recipe) -> Iterator[Finding]:
    """Checks that the mechanism has every depth that is asked for, and that the run is one that can be audited."""
    if recipe.audit is None:
        return
    kind = recipe.mechanism.kind
    known = mechanism_of(kind).audit_depths
    for depth in recipe.audit.depths:
        if depth in known or (depth == "program" and "program" not in recipe.audit.model_fields_set):
            continue
        other = "releases" if depth == "steps" else "steps"
        instead = f" and set audit.{other}" if other in known and depth != "program" else ""
        has = join_with_or(known) if known else "no depth"
        yield Finding(
            "P220",
            f"an audit of {kind} can't go to depth `{depth}`: it has {has}",
            f"remove audit.{depth}{instead}" if known else "remove audit",
            f"audit.{depth}",
        )
    if recipe.tuning is not None:
        yield Finding(
            "P221",
            "a tuned run is not audited: its runs differ in what they try, and an audit is of one program",
            "remove audit, and audit the recipe without its block `tuning`: dprecipe audit",
            "audit",
        )
    elif recipe.runtime.insecure is not None:
        yield Finding(
            "P221",
            "runtime.insecure fixes sampling and noise, and an audit draws its own: it would test another program",
            "remove runtime.insecure, or audit",
            "audit",
        )


def describe_audit(plan: Plan) -> list[tuple[str, str]]:
    """Returns the rows of `dprecipe plan`: the tests before the first private record, and the smallest fault that they
    would see. Nothing is known of their time before the program runs."""
    block = plan.audit
    if block is None:
        return []
    rows = [("audit", f"before the first private record, on synthetic records: {', '.join(block.depths) or 'nothing'}")]
    if block.steps is not None:
        rows.append(("audit sees", _describe_steps(plan, block.steps, block.confidence)))
    return rows


def _describe_steps(plan: Plan, steps: int, confidence: float) -> str:
    from dprecipe.privacy.audit.implied import step_mu
    from dprecipe.privacy.audit.power import smallest_fault
    from dprecipe.privacy.audit.results import AttackTrials

    claims = [mu for charge in plan.mechanism_plan.events if (mu := step_mu(charge.event)) is not None]
    if not claims:
        return f"{steps:,} steps, compared with the claimed curve of a step"
    half = max(1, steps // 2)
    trials = AttackTrials(form="mu", positives_in=0, trials_in=half, positives_out=0, trials_out=half)
    fault = smallest_fault(trials, confidence, max(claims))
    seen = "no fault of noise" if fault is None else f"a step of μ = {fault:.3g} or more, with probability 0.8"
    return f"{steps:,} steps: {seen} (μ = {max(claims):.3g} is claimed)"


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
    if isinstance(getattr(recipe.mechanism, "sampling", None), FixedOrderSampling):
        text = f"{text}, and from their places in the order, which depend on no record"
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
