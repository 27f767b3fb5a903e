"""`dprecipe account plan` and `account settle`: what a recipe would leave of its account; reporting a run to it."""

from __future__ import annotations

import math
import shlex
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.account.account import DataAccount
from dprecipe.account.opening import open_account
from dprecipe.account.standing import AccountState, find_cost
from dprecipe.cli.arguments import Overrides, RecipePath
from dprecipe.contract.plan import Plan
from dprecipe.faults import Fault, UsageFault
from dprecipe.libraries import importing_libraries
from dprecipe.planning.accounts import check_plan
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.filters.filter import admits, count_runs, mixture_epsilon
from dprecipe.privacy.filters.needed import find_filter_cap
from dprecipe.privacy.rounding import round_up
from dprecipe.recipe.read import Loaded, read
from dprecipe.recipe.root import set_values
from dprecipe.screen import write_note, write_output

MAX_RUNS = 10_000
"""Largest number of runs that is shown; more are shown as `more than`."""
CAPPED = 10
"""Number of runs whose cap is shown where no number is given."""
TRIES = 12
"""Plans that are solved to find the largest budget for a number of runs."""


def plan_in_account(
    recipe: RecipePath,
    overrides: Overrides = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Solve for this number of runs; for a tenth of what is left by default.")
    ] = None,
) -> None:
    """Prints what the account of a recipe counts, what it would count after the recipe's run, how many such runs fit,
    and the largest budget with which `runs` of them fit; without `runs`, with which one takes a tenth of what is left.

    Raises:
        RecipeError, PlanRefused: the recipe has no plan, or does not fit its account.
        UsageFault: the recipe names no account, or there is none.
        AccountUnavailable: it can't be reached or read.
    """
    if runs is not None and not 1 <= runs <= MAX_RUNS:
        raise UsageFault(
            f"expected --runs from 1 to {MAX_RUNS}, got {runs}", "leave it out for a tenth of what is left"
        )
    loaded = read(recipe, overrides or ())
    plan = make_plan(loaded)
    with closing(open_of(plan)) as account:
        check_plan(plan, account.facts)
        state = account.state()
    cost = cost_in(plan, state)
    fits = count_runs(state.spent, cost, state.facts.cap, MAX_RUNS)
    after = mixture_epsilon(state.spent + cost, state.facts.cap)
    lines = [
        *describe_state(state),
        f"  this run   ε = {plan.guarantee.epsilon:g} at δ = {plan.budget.delta:g} by itself; with it "
        + (f"ε = {after:.4g} would count" if fits else f"ε = {after:.4g}: it does not fit"),
        f"  runs like this that fit, each chosen in view of those before: {_tell_count(fits)}",
    ]
    write_output([*lines, *_advise(loaded, plan, state, runs), describe_needed_cap(plan, state, runs)])


def describe_needed_cap(plan: Plan, state: AccountState, runs: int | None) -> str:
    """Returns the cap that a number of runs like this needs, as a line."""
    count, delta = runs or CAPPED, state.facts.delta
    cap = find_filter_cap(plan.events, count, delta, state.facts.neighbouring)
    needed = f"{round_up(cap, 4):g}" if math.isfinite(cap) else "more than an account can have"
    return f"  {count} runs like this at δ = {delta:g} take a cap of ε = {needed}, each chosen in view of those before"


def open_of(plan: Plan) -> DataAccount:
    """Returns the account that a plan names, to read. Raises as `open_account`, and `UsageFault` where it names
    none."""
    if plan.budget.account is None:
        raise UsageFault("this recipe names no account", "name one: budget.account")
    return open_account(plan.budget.account, Path(plan.source.file).resolve().parent, read_only=True)


def cost_in(plan: Plan, state: AccountState) -> Spent:
    """Returns what the plan costs the account."""
    return find_cost(plan.events, state.facts.neighbouring, state.facts.cap)


def describe_state(state: AccountState) -> list[str]:
    """Returns an account as lines of text."""
    facts, totals = state.facts, state.totals
    opened = f", {totals.opened} of them open, which count in full" if totals.opened else ""
    return [
        f"account {facts.name}",
        f"  counted    ε = {state.epsilon:.4g} of {facts.epsilon:g} at δ = {facts.delta:g}: {totals.runs} runs{opened}",
    ]


def describe_plan(plan: Plan) -> list[str]:
    """Returns one line for `dprecipe plan` and `run`: the plan's account and what it would count after the run.

    Raises:
        PlanRefused: it does not fit the account.
    """
    if plan.budget.account is None:
        return []
    try:
        with closing(open_of(plan)) as account:
            state = account.state()
    except Fault as fault:
        return [f"  account: {fault.message}; {fault.remedy}"]
    check_plan(plan, state.facts)
    after = state.spent + cost_in(plan, state)
    note = "" if admits(after, state.facts.cap) else ": it does not fit; see dprecipe account plan"
    return [
        f"  account {state.facts.name}: ε = {state.epsilon:.4g} of {state.facts.epsilon:g} is counted, with this run "
        f"{mixture_epsilon(after, state.facts.cap):.4g}{note}"
    ]


def _tell_count(fits: int) -> str:
    return f"{fits:,}" if fits < MAX_RUNS else f"{MAX_RUNS:,} or more"


def _advise(loaded: Loaded, plan: Plan, state: AccountState, runs: int | None) -> list[str]:
    what = "a tenth of what is left" if runs is None else f"{runs} runs like this"
    if loaded.recipe.budget.epsilon == "auto":
        return [f"  {what}: give budget.epsilon a number and set the noise to auto; it is solved then"]
    found = find_budget(loaded, plan, state, runs or 10)
    if found is None:
        return [f"  {what}: no budget.epsilon of a hundredth of {plan.budget.epsilon:g} or more is small enough"]
    solved = "".join(f", {path} {value:g}" for path, value in found.solved.items())
    note = "" if found.budget.epsilon < plan.budget.epsilon else " (as the recipe has it)"
    return [f"  {what}: budget.epsilon {found.budget.epsilon:g}{note}{solved}"]


def find_budget(loaded: Loaded, plan: Plan, state: AccountState, runs: int) -> Plan | None:
    """Returns the plan of the recipe with the largest budget at which `runs` runs fit, up to that of `plan`, its own;
    None where there is none of at least a hundredth of it."""

    def fits(tried: Plan) -> bool:
        return admits(state.spent + cost_in(tried, state).times(runs), state.facts.cap)

    def plan_with(epsilon: float) -> Plan | None:
        try:
            found = make_plan(replace(loaded, recipe=set_values(loaded.recipe, {"budget.epsilon": epsilon})))
        except Fault:
            return None
        return found if fits(found) else None

    if fits(plan):
        return plan
    best: Plan | None = None
    low, high = plan.budget.epsilon / 100, plan.budget.epsilon
    for _ in range(TRIES):
        middle = float(f"{(low * high) ** 0.5:.3g}")
        found = plan_with(middle)
        if found is None:
            high = middle
        else:
            best, low = found, middle
        if high / low < 1.01:
            break
    return best


def settle(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)],
) -> int:
    """Settles a run in its account, and writes the release that was held back; returns the exit code."""
    with importing_libraries("settling a run"):
        from dprecipe.training.publish.held import complete_run

    done = complete_run(run)
    if done.account is None:
        write_output([f"{run}: nothing was drawn, so what it had reserved is given back"])
        return 0
    counted = f"{run}: settled; {describe_counted(done.account.name, done.account.epsilon_so_far)}"
    if done.epsilon is None:
        refuted = done.folder.find_refutation()
        if refuted is None:
            write_note("there is no release yet: continue with --resume, which draws nothing more")
        else:
            write_note(f"there is no release, and none will come: {refuted}; the account counts what was claimed")
        write_output([counted])
        return 0
    release = done.folder.release
    write_output([counted, f"publish {release}; check it with: dprecipe verify {shlex.quote(str(release))}"])
    return 0


def describe_counted(name: str, epsilon: float | None) -> str:
    return f"account {name} counts ε = {'infinite' if epsilon is None else format(epsilon, '.4g')}"
