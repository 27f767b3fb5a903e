"""Checks of the `audit` block, and the sensitivity of an audit of its sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Finding
from dprecipe.language.words import join_with_or
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
