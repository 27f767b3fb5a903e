"""Turns a recipe into a plan: pure arithmetic, no data read, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import Plan, PlanBudget, PlannedTuning
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import PlanRefused
from dprecipe.planning import accept, audit, from_python, paid, public, records, rules, split, tuning
from dprecipe.planning.candidates import Point, trial_recipe
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.rounding import round_up
from dprecipe.recipe.read import Loaded
from dprecipe.recipe.root import set_values


def plan(loaded: Loaded, known: Mapping[str, float | int] | None = None) -> Plan:
    """Checks a recipe across its blocks, solves its free variable, and freezes what the run will do and spend.

    `known`: the values, by path, of all that the recipe leaves open, if they were solved before: nothing is solved.

    Guarantees: `plan.guarantee.epsilon <= plan.budget.epsilon`; the same texts give the same digest.

    Raises:
        PlanRefused: with every finding, each at its place in the recipe.
        PointError: the known values make no recipe.
    """
    recipe = loaded.recipe
    findings = rules.check(recipe, loaded.source.attachments)
    if any(finding.is_error for finding in findings):
        raise PlanRefused(loaded.located(findings))
    account = mechanism_of(recipe.mechanism.kind).account
    pinned = recipe if known is None else paid.pin_values(recipe, known)
    facts = replace(Facts.of(pinned, loaded.source.attachments), known=bool(known))
    try:
        facts, prices = paid.solve_prices(pinned, facts)
        planned = account.plan(pinned.mechanism, facts)
        spending = paid.list_spending(planned.plan.events, facts)
    except PlanRefused as refusal:
        raise PlanRefused(loaded.located(refusal.findings)) from None
    found = {**prices, **planned.solved} if known is None else {**known}
    solved = {**paid.pin_prices(recipe, facts.stages), **found}
    events = (*facts.stage_charges, *planned.plan.events)
    others = tuning.find_other_events(recipe, solved, events, loaded.source.attachments)
    if others:
        raise PlanRefused(loaded.located(others))
    warnings = [*findings, *accept.mark_accepted(recipe, planned.warnings)]
    warnings += accept.find_unused_acceptances(recipe, warnings, accept.PLAN_WARNINGS)
    relation = Neighbouring(recipe.budget.neighbouring)
    terms = (recipe.budget.delta, relation, facts.unit, recipe.budget.accountant)
    guarantee = accountants.guarantee(facts.release(planned.plan.events), *terms)
    tuned = None
    if recipe.tuning is not None:
        (charge,) = facts.select(planned.plan.events)
        own = (*planned.plan.events, *facts.score)
        one = accountants.epsilon(own, recipe.budget.delta, relation, recipe.budget.accountant)
        tuned = PlannedTuning(recipe.tuning, charge, round_up(one))
    return Plan(
        name=recipe.name,
        description=recipe.description,
        source=loaded.source,
        resolved=recipe.model_dump(mode="json", by_alias=True),
        mechanism_plan=planned.plan,
        solved=paid.drop_shares(recipe, found),
        guarantee=guarantee,
        budget=PlanBudget(
            guarantee.epsilon if facts.cap is None else facts.cap,
            recipe.budget.delta,
            relation,
            recipe.budget.accountant,
            recipe.budget.account,
        ),
        assumptions=(
            *planned.assumptions,
            *paid.assume_paid_steps(facts),
            *records.assume_unit_column(recipe),
            *split.assume_split(recipe),
            *records.assume_query(recipe),
            *public.assume_public_weights(recipe),
            *public.assume_public_tokenizer(recipe),
            *from_python.assume_own(recipe),
            *tuning.list_assumptions(recipe),
            *audit.assume_canaries(recipe),
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
        tuning=tuned,
        audit=recipe.audit,
    )


def plan_trial(loaded: Loaded, tuned: Plan, point: Point) -> Plan:
    """Returns the plan of one of the runs of a tuned plan, with the values that it drew.

    Guarantees: its paid steps and its events are those that the tuned plan was solved for.

    Raises:
        PlanRefused: the values make no recipe that has a plan with these events.
    """
    findings = tuning.check_point(loaded.recipe, tuned, point)
    if findings:
        raise PlanRefused(loaded.located(findings))
    solved = {**paid.pin_prices(loaded.recipe, tuned.stages), **tuned.solved}
    result = plan(replace(loaded, recipe=trial_recipe(loaded.recipe, point, solved)))
    # prices of paid steps as the recipe writes them: what is released says the same
    return replace(result, data=set_values(loaded.recipe, point).data)


def plan_chosen(loaded: Loaded, chosen: Point) -> Plan:
    """Returns the plan of a tuned recipe after the choice: the run with these values is released. Its digest is that of
    the plan before.

    Raises:
        PlanRefused: the recipe has no plan, or no run of it can have drawn these values.
    """
    return choose(loaded, plan(loaded), chosen)


def choose(loaded: Loaded, tuned: Plan, chosen: Point, known: Mapping[str, float | int] | None = None) -> Plan:
    """Returns the plan after the choice, as `plan_chosen` does. `tuned`: the plan before it; `known`: see `plan`."""
    findings = tuning.check_chosen(loaded.recipe, tuned, chosen)
    if tuned.tuning is None or findings:
        raise PlanRefused(loaded.located(findings))
    result = plan(replace(loaded, recipe=set_values(loaded.recipe, chosen)), known)
    before = replace(tuned.tuning, digest=tuned.digest, resolved=tuned.resolved, chosen=dict(chosen))
    return replace(result, tuning=before)
