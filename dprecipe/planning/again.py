"""A plan made again from what its certificate states: nothing is solved, and no default of today is used.

A certificate holds the recipe's text, the same recipe with the defaults of its day, and the values that were solved.
A later version has other defaults, and a solver that finds other values. So the defaults and the values are taken from
the certificate: the text must have written no other ones, and what they cost is computed again from the events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from dprecipe.contract.plan import Plan
from dprecipe.planning.candidates import Point
from dprecipe.planning.make import choose
from dprecipe.planning.make import plan as make_plan
from dprecipe.planning.paid import list_free_prices, list_shares
from dprecipe.planning.tuning import list_unsolved
from dprecipe.recipe.read import Loaded
from dprecipe.recipe.root import PointError, Recipe, look_up

ABSENT = object()


class StatedOtherwise(ValueError):
    """The text of a recipe does not give what is stated of it; the message starts with the field's path."""


@dataclass(frozen=True, slots=True)
class StatedPlan:
    """A plan as it was stated: the resolved recipe, the solved values, the budget's ε, and the values of the released
    run where there were several."""

    resolved: Mapping[str, Any]
    solved: Mapping[str, float | int]
    epsilon: float
    chosen: Point | None = None


def plan_again(loaded: Loaded, stated: StatedPlan) -> Plan:
    """Returns the plan that was stated.

    Raises:
        StatedOtherwise: the text has other values, or other values are open in it.
        PlanRefused: it is no plan that keeps its budget.
    """
    recipe = resolve_as_stated(loaded.recipe, stated.resolved)
    _check_open(recipe, stated.solved)
    loaded = replace(loaded, recipe=recipe)
    try:
        planned = _with_budget(make_plan(loaded, stated.solved), recipe, stated)
    except PointError as error:
        raise StatedOtherwise(f"provenance.solved: {error}") from None
    if stated.chosen is None:
        return planned
    return _with_budget(choose(loaded, planned, stated.chosen, stated.solved), recipe, stated)


def _with_budget(plan: Plan, recipe: Recipe, stated: StatedPlan) -> Plan:
    """Returns a plan as it was resolved. A budget that is `auto` was what its events cost on the day."""
    budget = plan.budget if recipe.budget.epsilon != "auto" else replace(plan.budget, epsilon=stated.epsilon)
    return replace(plan, resolved=stated.resolved, budget=budget)


def _check_open(recipe: Recipe, solved: Mapping[str, float | int]) -> None:
    """Checks that values are stated of all that the recipe leaves open, and of nothing else."""
    prices = {path for path, noise in list_free_prices(recipe).items() if noise == "auto"}
    missing = {*list_unsolved(recipe), *prices, *list_shares(recipe)} - solved.keys()
    if missing:
        raise StatedOtherwise(f"provenance.solved: {', '.join(sorted(missing))}: missing, and open in the recipe")
    written = recipe.model_dump(mode="json", by_alias=True)
    for path in solved.keys() - list_shares(recipe):
        try:
            is_open = look_up(written, path) == "auto" and path.split(".")[0] in ("mechanism", "training", "data")
        except PointError:
            is_open = False
        if not is_open:
            raise StatedOtherwise(f"provenance.solved.{path}: the recipe does not leave it open")


def resolve_as_stated(recipe: Recipe, resolved: Mapping[str, Any]) -> Recipe:
    """Returns a recipe with the stated values wherever its text writes none.

    Raises:
        StatedOtherwise: the text writes another value, or there is no such key.
    """
    written = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    merged = _merge(written, recipe.model_dump(mode="json", by_alias=True), dict(resolved), "")
    if merged == written:
        return recipe
    try:
        return Recipe.model_validate_json(json.dumps(merged))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:200]
        raise StatedOtherwise(f"provenance.recipe.resolved: {place}: no recipe has this") from None


def _merge(written: Any, today: Any, stated: Any, path: str) -> Any:
    """Returns what is written, with the stated values that are other defaults than today's. A key that is not stated is
    newer than the certificate, and has the meaning that there was without it."""
    if isinstance(written, dict) and isinstance(stated, dict):
        merged = {}
        for key in {**written, **stated}:
            ours = today.get(key, ABSENT) if isinstance(today, dict) else ABSENT
            if key in written:
                merged[key] = _merge(written[key], ours, stated.get(key, ABSENT), f"{path}.{key}")
            elif not _are_equal(ours, stated[key]):
                merged[key] = stated[key]
        return merged
    if isinstance(written, list) and isinstance(stated, list) and len(written) == len(stated):
        theirs = today if isinstance(today, list) and len(today) == len(written) else [ABSENT] * len(written)
        rows = enumerate(zip(written, theirs, stated, strict=True))
        return [_merge(one, ours, other, f"{path}.{index}") for index, (one, ours, other) in rows]
    if not _are_equal(written, stated):
        raise StatedOtherwise(f"provenance.recipe.resolved{path}: not what the recipe's text says")
    return written


def _are_equal(one: Any, other: Any) -> bool:
    """Returns True if two JSON values are equal, and of the same types: a number is no truth value."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return type(one) is type(other) and bool(one == other)
