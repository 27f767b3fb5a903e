"""`dprecipe account reserve`: a group of slots, which runs take of later."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.account.facts import AccountFacts
from dprecipe.account.opening import open_account
from dprecipe.cli.arguments import AccountAddress
from dprecipe.faults import Finding, PlanRefused, UsageFault
from dprecipe.planning.accounts import check_facts
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, count_events
from dprecipe.privacy.filters.split import subtract_decimals
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.recipe.read import read
from dprecipe.screen import write_output

MAX_TIMES = 100_000
_LESS = 1e-8


def reserve_group(
    address: AccountAddress,
    group: Annotated[
        str, typer.Option("--slots", metavar="NAME", help="The group's name; recipes name it in budget.slots.")
    ],
    recipes: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RECIPE…", help="Recipes whose events become the slots.", show_default=False),
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="Number of runs of each recipe.")] = 1,
    delta: Annotated[float | None, typer.Option(help="The group's δ; by default all δ left for slots.")] = None,
    gaussian: Annotated[
        float | None,
        typer.Option(metavar="E", help="Instead of recipes: Gaussian runs without sampling, up to this ε."),
    ] = None,
) -> None:
    """Reserves a group of slots, and says what it costs.

    Raises:
        RecipeError, PlanRefused: a recipe has no plan, or is for another unit or relation.
        NotInAccount: an event that can't be a slot.
        AccountRefused: the account's part for slots can't hold the group.
        UsageFault, AccountUnavailable: see `open_account`; neither recipes nor a Gaussian, or both.
    """
    if bool(recipes) == (gaussian is not None):
        raise UsageFault("slots are of recipes, or of Gaussian noise", "name recipes, or give --gaussian E")
    if times > MAX_TIMES or (gaussian is not None and times != 1):
        raise UsageFault(f"--times is of recipes, up to {MAX_TIMES:,}", "lower it, or leave it out")
    with closing(open_account(address)) as account:
        state, facts = account.state(), account.facts
        if delta is None and facts.slots is not None:
            delta = subtract_decimals(facts.slots.delta, state.totals.groups.delta)
        if delta is None or not 0 < delta < 1:
            delta = 0.0  # the account says why
        charges: list[Charge] = []
        if gaussian is not None:
            charges, what = [_find_gaussian(gaussian, delta, facts.neighbouring)], f"Gaussian noise, ε = {gaussian:g}"
        else:
            plans = [_plan_for(recipe, facts) for recipe in recipes or ()]
            what = ", ".join(f"{times} × {name}" if times > 1 else name for name, _ in plans)
            charges = [Charge(each.event, each.count * times) for _, own in plans for each in own]
        made = account.reserve_slots(group, charges, delta, what)
        left = account.state().totals.groups
    lines = [
        f"account {facts.name}: reserved the slots {group}: {what}",
        f"  together   ε = {made.epsilon:g} at δ = {made.delta:g}, for {count_events(made.charges):,} events",
    ]
    if facts.slots is not None:
        rest = subtract_decimals(facts.slots.epsilon, left.epsilon), subtract_decimals(facts.slots.delta, left.delta)
        lines.append(f"  left       ε = {rest[0]:g}, δ = {rest[1]:g} for further groups")
    write_output([*lines, f"  next       budget: {{…, account: …, slots: {group}}} in recipes that take of them"])


def _plan_for(path: Path, facts: AccountFacts) -> tuple[str, tuple[Charge, ...]]:
    """Returns the name of a recipe, and what its run draws."""
    loaded = read(path)
    findings: list[Finding] = [*check_facts(loaded.recipe, facts)]
    if findings:
        raise PlanRefused(loaded.located(findings))
    plan = make_plan(loaded)
    return plan.name, plan.events


def _find_gaussian(epsilon: float, delta: float, neighbouring: Neighbouring) -> Charge:
    """Returns one Gaussian that has this ε at δ, rounding included: all runs whose μ² add up to less are dominated by
    it."""
    from dprecipe.privacy.filters.slots import SlotGroup

    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise UsageFault(
            f"--gaussian {epsilon:g} at δ = {delta:g}: no Gaussian has it",
            "the account needs a part for slots that is not used up (--slots-epsilon); give an ε above 0",
        )
    moved = 2.0 if neighbouring is Neighbouring.REPLACE_ONE else 1.0
    less = _LESS
    while True:
        charge = Charge(Gaussian(moved / (gdp.mu_for(epsilon, delta) * (1 - less))), 1)
        if SlotGroup((charge,), neighbouring).epsilon(delta) <= epsilon or less > 0.1:
            return charge
        less *= 4
