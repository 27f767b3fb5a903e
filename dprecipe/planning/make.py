"""Recipe to plan: pure arithmetic, no data read, no torch."""

from __future__ import annotations

from dprecipe.faults import PlanRefused
from dprecipe.mechanisms.contract import Facts
from dprecipe.mechanisms.plan import Plan, PlanBudget
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.planning import accept, paid, public, rules, units
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import Loaded


def plan(loaded: Loaded) -> Plan:
    """Check a recipe across its blocks, solve its free variable, and freeze what the run will do and spend.

    Guarantees: `plan.guarantee.epsilon <= plan.budget.epsilon`; the same texts give the same digest.

    Raises:
        PlanRefused: with every finding, each at its place in the recipe.
    """
    recipe = loaded.recipe
    findings = rules.check(recipe, loaded.source.attachments)
    if any(finding.is_error for finding in findings):
        raise PlanRefused(loaded.located(findings))
    account = mechanism_of(recipe.mechanism.kind).account
    facts = Facts.of(recipe, loaded.source.attachments)
    try:
        facts, prices = paid.solve_prices(recipe, facts)
        planned = account.plan(recipe.mechanism, facts)
        spending = paid.list_spending(facts.stages, planned.plan.events, facts)
    except PlanRefused as refusal:
        raise PlanRefused(loaded.located(refusal.findings)) from None
    warnings = [*findings, *accept.mark_accepted(recipe, planned.warnings)]
    warnings += accept.find_unused_acceptances(recipe, warnings, accept.PLAN_WARNINGS)
    relation = Neighbouring(recipe.budget.neighbouring)
    guarantee = accountants.guarantee(
        (*facts.stage_charges, *planned.plan.events),
        recipe.budget.delta,
        relation,
        facts.unit,
        recipe.budget.accountant,
    )
    return Plan(
        name=recipe.name,
        description=recipe.description,
        source=loaded.source,
        resolved=recipe.model_dump(mode="json", by_alias=True),
        room=planned.plan,
        solved={**prices, **planned.solved},
        guarantee=guarantee,
        budget=PlanBudget(
            guarantee.epsilon if facts.cap is None else facts.cap,
            recipe.budget.delta,
            relation,
            recipe.budget.accountant,
        ),
        assumptions=(
            *planned.assumptions,
            *paid.assume_paid_steps(facts),
            *units.assume_unit_column(recipe),
            *public.assume_public_weights(recipe),
            *accept.list_declarations(recipe, warnings),
        ),
        data=recipe.data,
        model=recipe.model,
        training=recipe.training,
        release=recipe.release,
        runtime=recipe.runtime,
        warnings=loaded.located(warnings),
        stages=facts.stages,
        spending=spending,
    )
