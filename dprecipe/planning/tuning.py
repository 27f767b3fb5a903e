"""Checks of `tuning`: the conditions of the bounds for the best of several runs.

All runs have to be the same mechanism: the same events, whatever values they draw, each drawn independently of all
others. They are compared by what they release and public records alone, and nothing of them but the winner is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import Assumption, Plan
from dprecipe.contract.stages import list_paid_steps
from dprecipe.contract.table import list_kinds, mechanism_of
from dprecipe.faults import Finding, PlanRefused
from dprecipe.language.base import Auto
from dprecipe.language.tuning import TUNABLE, Candidates, Tuning
from dprecipe.language.words import join_with_or
from dprecipe.planning.candidates import Point, check_score, describe_comparison, list_points, may_draw, trial_recipe
from dprecipe.planning.paid import pin_prices
from dprecipe.planning.verifiable import find_unsupported
from dprecipe.privacy.events import Charge
from dprecipe.recipe.root import PointError, Recipe

Attachments = tuple[tuple[str, str], ...]
"""Name and text of each file, as in `contract.plan.RecipeSource`."""
CLAIM = ("mechanism.kind",)
"""Keys within tunable blocks that can't be tuned: they decide what is claimed."""
MIN_BASE = 0.05
"""ε of one run below which it learns next to nothing."""
KEPT = "; the others are kept encrypted, and nobody who sees the release opens them"
WHY_RANDOM = {
    "bayesian": "a Bayesian search",
    "tpe": "TPE",
    "asha": "ASHA",
    "hyperband": "Hyperband",
    "population": "population-based training",
}


@runtime_checkable
class HasChoices(Protocol):
    """A `mechanism` block with values that may be `auto` and are no free variables: they follow from the others."""

    @property
    def choices(self) -> dict[str, float | int | Auto]:
        """These values, by dotted path; any of them may be 1."""


def check_tuning(recipe: Recipe) -> Iterator[Finding]:
    """Checks everything that needs no accounting."""
    if recipe.tuning is None:
        return
    findings = [
        *_check_program(recipe, recipe.tuning),
        *_check_search(recipe.tuning),
        *check_score(recipe, recipe.tuning.score),
        *_check_keys(recipe.tuning),
        *_check_stages(recipe, recipe.tuning),
        *(finding for index, each in enumerate(recipe.tuning.over) for finding in _check_values(index, each)),
    ]
    yield from findings


def _check_program(recipe: Recipe, tuning: Tuning) -> Iterator[Finding]:
    kind = recipe.mechanism.kind
    if not mechanism_of(kind).can_be_tuned:
        others = join_with_or(list_kinds(lambda mechanism: mechanism.can_be_tuned))
        yield Finding(
            "P187",
            f"the best of several runs has no guarantee with {kind}: its runs don't cost the same, whatever values "
            "they draw",
            f"remove tuning, or choose mechanism.kind {others}",
            "tuning",
        )
    if recipe.runtime.insecure is not None:
        yield Finding(
            "P187",
            "runtime.insecure gives every run the same noise, and the runs of a tuned run have to be independent",
            "remove runtime.insecure",
            "runtime.insecure",
        )
    if recipe.runtime.processes > 1:
        yield Finding(
            "P187",
            "a tuned run starts a process for each run, and runtime.processes several for one",
            "set runtime.processes to 1, and run several at once with dprecipe tune --jobs",
            "runtime.processes",
        )


def _check_search(tuning: Tuning) -> Iterator[Finding]:
    if tuning.search != "random":
        name = WHY_RANDOM[tuning.search]
        yield Finding(
            "P185",
            f"{name} decides by the scores of earlier runs what is tried next, or which run goes on: the runs are then "
            "not independent draws, and only the composition of all of them would be a bound",
            "set tuning.search to random",
            "tuning.search",
        )


def _check_keys(tuning: Tuning) -> Iterator[Finding]:
    keys = [each.key for each in tuning.over]
    for index, key in enumerate(keys):
        path = f"tuning.over.{index}.key"
        if any(_is_within(key, claim) for claim in CLAIM) or not any(_is_within(key, root) for root in TUNABLE):
            yield Finding(
                "P180",
                f"{key} can't be tuned: it says who is protected, what is claimed, or how it is run, not how a model "
                "learns",
                f"remove it; keys of {join_with_or(TUNABLE)} can be tuned",
                path,
            )
        other = next((known for known in keys[:index] if _is_within(key, known) or _is_within(known, key)), None)
        if other is not None:
            yield Finding("P182", f"{key} and {other} set the same value", "remove one of them", path)


def _check_stages(recipe: Recipe, tuning: Tuning) -> Iterator[Finding]:
    """Checks that the paid steps can run once, before all runs: what they read and release is the same for each."""
    last = max((index for index, _ in list_paid_steps(recipe.data)), default=-1)
    before = [f"data.preprocess.{index}" for index in range(last + 1)]
    for index, each in enumerate(tuning.over):
        if any(_is_within(each.key, step) for step in before):
            yield Finding(
                "P180",
                f"{each.key} can't be tuned: the paid steps of data.preprocess release their constants once, before "
                "the first run, and this key decides what they read or what they cost",
                f"remove it; keys of steps after data.preprocess.{last} can be tuned",
                f"tuning.over.{index}.key",
            )


def _is_within(key: str, block: str) -> bool:
    return key == block or key.startswith(block + ".")


def _check_values(index: int, each: Candidates) -> Iterator[Finding]:
    path = f"tuning.over.{index}"
    if (each.values is None) == (each.range is None):
        yield Finding(
            "P183",
            f"{each.key} has {'neither values nor a range' if each.values is None else 'both values and a range'}",
            "write `values: […]`, or `range: […, …]` with a scale",
            path,
        )
        return
    if each.range is None:
        if each.scale is not None:
            yield Finding("P183", "a list of values has no scale", "remove it", f"{path}.scale")
        return
    low, high = each.range
    if not low < high:
        ends = f"[{high:g}, {low:g}]" if high < low else "values: […]"
        yield Finding(
            "P183",
            f"the range begins at {low:g} and ends at {high:g}",
            f"write {ends}" if high < low else f"write {ends} instead",
            f"{path}.range",
        )
    elif each.scale is None:
        yield Finding(
            "P183",
            f"the range of {each.key} has no scale: between {low:g} and {high:g}, which values are equally likely?",
            "set scale to log (rates, norms) or linear",
            path,
        )
    elif each.scale == "log" and not low > 0:
        yield Finding(
            "P183",
            f"a range on a log scale begins above 0, not at {low:g}",
            "raise its beginning, or set scale to linear",
            f"{path}.range",
        )


def check_budget(recipe: Recipe) -> Iterator[Finding]:
    """Checks that the budget leaves one run something to learn with."""
    tuning, budget = recipe.tuning, recipe.budget
    if tuning is None or budget.epsilon == "auto":
        return
    from dprecipe.privacy import gdp
    from dprecipe.privacy.tuning.plan import allows_run, base_budget, total_epsilon
    from dprecipe.privacy.tuning.runs import make_runs

    runs, least = make_runs(*tuning.runs.selection), gdp.mu_for(MIN_BASE, budget.delta)
    if not allows_run(budget.epsilon, budget.delta, runs, least):
        try:
            base = base_budget(budget.epsilon, budget.delta, runs).epsilon
        except ValueError:
            base = 0.0
        needed = 1.001 * total_epsilon(least, budget.delta, runs)
        needed = math.ceil(needed * 1000) / 1000
        number = "count" if tuning.runs.kind == "fixed" else "mean"
        yield Finding(
            "P186",
            f"of ε = {budget.epsilon:g} for all runs, one run would have ε = {base:.2g}: below {MIN_BASE:g} it learns "
            "next to nothing",
            f"lower tuning.runs.{number}, or raise budget.epsilon to {needed:g} or more",
            "budget.epsilon",
        )


def check_candidates(
    recipe: Recipe, attachments: Iterable[tuple[str, str]], check: Callable[[Recipe, Attachments], list[Finding]]
) -> list[Finding]:
    """Checks that every candidate makes a recipe without an error, with the same events as the others.

    `check`: what a recipe of one run is checked by. What is still `auto` is set to 1: events are compared with each
    other, not accounted.
    """
    if recipe.tuning is None:
        return []
    attached = tuple(attachments)
    ones: dict[str, float | None] = {**pin_prices(recipe), **dict.fromkeys(list_unsolved(recipe), 1)}
    if "training.steps" in ones and all(each.key != "training.steps" for each in recipe.tuning.over):
        ones |= {"training.steps": None, "training.epochs": 1}  # a single step may be no whole event
    findings: dict[str, Finding] = {}
    trial = trial_recipe(recipe, {}, ones)
    nominal = _plan_events(trial, attached)
    unsupported = find_unsupported(recipe, () if nominal is None else nominal[len(Facts.of(trial).stage_charges) :])
    if unsupported:
        return unsupported
    for index, point in list_points(recipe.tuning):
        path = f"tuning.over.{index}"
        if findings and len(point) > 1:
            break  # combinations are worth checking only where every value is right by itself
        finding = _check_point(recipe, point, ones, nominal, attached, check)
        if finding is not None:
            findings.setdefault(path, replace(finding, path=path))
    return list(findings.values())


def find_other_events(
    recipe: Recipe, solved: Mapping[str, float | None], events: Sequence[Charge], attachments: Attachments
) -> list[Finding]:
    """Finds candidates whose run has other events than `events`, which were solved for and follow those of the paid
    steps."""
    if recipe.tuning is None:
        return []
    findings: dict[str, Finding] = {}
    for index, point in ((0, {}), *list_points(recipe.tuning)):
        path = f"tuning.over.{index}"
        finding = _check_point(recipe, point, solved, tuple(events), attachments, lambda trial, attached: [])
        if finding is not None:
            findings.setdefault(path, replace(finding, path=path))
    return list(findings.values())


def check_point(recipe: Recipe, tuned: Plan, point: Point) -> list[Finding]:
    """Returns the reasons why a run with these values is not the mechanism that the tuned plan was solved for."""
    attached = tuned.source.attachments
    solved = {**pin_prices(recipe, tuned.stages), **tuned.solved}
    events = (*tuned.stage_charges, *tuned.mechanism_plan.events)
    finding = _check_point(recipe, point, solved, events, attached, lambda trial, attached: [])
    return [] if finding is None else [replace(finding, path="tuning.over")]


def check_chosen(recipe: Recipe, tuned: Plan, chosen: Point) -> list[Finding]:
    """Returns the reasons why no run of a tuned plan can have drawn these values."""
    block = recipe.tuning
    if block is None:
        return [Finding("P182", "the recipe tunes nothing", "remove what was chosen", "")]
    if set(chosen) != {each.key for each in block.over}:
        return [Finding("P182", "other keys were chosen than tuning.over has", "give each of its keys", "tuning.over")]
    wrong = next((index for index, each in enumerate(block.over) if not may_draw(each, chosen[each.key])), None)
    if wrong is not None:
        key = block.over[wrong].key
        return [Finding("P182", f"no run can draw this value of {key}", "give one that it has", f"tuning.over.{wrong}")]
    return check_point(recipe, tuned, chosen)


def list_assumptions(recipe: Recipe) -> Iterator[Assumption]:
    """Yields the assumptions of the bound for the best of several runs."""
    if recipe.tuning is None:
        return
    if recipe.tuning.runs.kind != "fixed":
        yield Assumption(
            "tuning_runs", "the number of runs is drawn in secret before the first of them, and stays secret", "code"
        )
    yield Assumption(
        "tuning_draws",
        "every run draws its values from the public distribution of the recipe, independently of the others; its "
        "randomness is its own",
        "code",
    )
    yield Assumption("tuning_score", f"{describe_comparison(recipe.tuning)}; ties are broken at random", "code")
    yield Assumption(
        "tuning_secrecy",
        "nothing of the other runs is seen outside private/: no score, no weights, not how long they took; no run was "
        "broken off, or done again, for what it showed" + ("" if recipe.tuning.keep is None else KEPT),
        "declaration",
    )
    yield Assumption(
        "tuning_losses",
        "whether a run was lost (it then comes last) depended on nothing that another run read or drew, as it would if "
        "one fills a memory that another needs; a process or command that was killed, and whose run was made anew, was "
        "killed from outside",
        "declaration",
    )


def list_unsolved(recipe: Recipe) -> list[str]:
    """Returns the paths of the values that are `auto`, without the budget's."""
    training = recipe.training
    values = {
        **recipe.mechanism.solvable,
        **(recipe.mechanism.choices if isinstance(recipe.mechanism, HasChoices) else {}),
        "training.epochs": training.epochs,
        "training.steps": training.steps,
    }
    return [path for path, value in values.items() if value == "auto"]


def _check_point(
    recipe: Recipe,
    point: Point,
    solved: Mapping[str, float | None],
    nominal: tuple[Charge, ...] | None,
    attachments: Attachments,
    check: Callable[[Recipe, Attachments], list[Finding]],
) -> Finding | None:
    """Returns the reasons why a point can't be one of the runs, without a path."""
    shown = ", ".join(f"{key} = {value}" for key, value in point.items())
    try:
        trial = trial_recipe(recipe, point, {path: value for path, value in solved.items() if path not in point})
    except PointError as error:
        return Finding("P182", f"{shown} makes no recipe: {error}", "correct the key or its values")
    wrong = next((finding for finding in check(trial, attachments) if finding.is_error), None)
    if wrong is not None:
        return Finding("P182", f"{shown} makes no recipe: {wrong.code}, {wrong.message}", wrong.remedy)
    events = _plan_events(trial, attachments)
    if nominal is None or events is None or events == nominal:
        return None
    return Finding(
        "P181",
        f"a run with {shown} has other events than the others: what it costs would depend on what it draws, and the "
        "bound is for runs that are all the same mechanism",
        "remove it from tuning.over, and give it one value; keys that leave noise, sampling and length as they are can "
        "be tuned",
    )


def _plan_events(trial: Recipe, attachments: Attachments) -> tuple[Charge, ...] | None:
    """Returns the events of the paid steps, and those of one run; None where its account refuses it."""
    facts = Facts.of(trial, attachments)
    try:
        account = mechanism_of(trial.mechanism.kind).account
        return (*facts.stage_charges, *account.plan(trial.mechanism, facts).plan.events)
    except PlanRefused:
        return None
