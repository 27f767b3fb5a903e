"""The candidates of a tuned recipe: the values of its keys, the points to check, one run's recipe."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from dprecipe.language.tuning import Candidates, Tuning, Value
from dprecipe.recipe.root import Recipe, set_values

Point = Mapping[str, Value]
"""A value for each key of `tuning.over`."""
MAX_POINTS = 64
"""Largest number of combinations that are all checked before a run; if there are more, each value is checked with the
others as the recipe has them."""


def list_ends(candidates: Candidates) -> tuple[Value, ...]:
    """Returns the values of a list, or both ends of a range."""
    return candidates.values if candidates.values is not None else tuple(candidates.range or ())


def may_draw(candidates: Candidates, value: object) -> bool:
    """Returns True if a run can have drawn this value."""
    if candidates.values is not None:
        return any(type(value) is type(known) and value == known for known in candidates.values)
    low, high = candidates.range or (0.0, 0.0)
    return type(value) is float and low <= value <= high


def value_at(candidates: Candidates, uniform: float) -> Value:
    """Returns the value that a number of [0, 1) draws: from a list, each with the same chance; from a range, rounded to
    six digits."""
    if candidates.values is not None:
        return candidates.values[min(int(uniform * len(candidates.values)), len(candidates.values) - 1)]
    low, high = candidates.range or (0.0, 0.0)
    if candidates.scale == "log":
        drawn = math.exp(math.log(low) + uniform * (math.log(high) - math.log(low)))
    else:
        drawn = low + uniform * (high - low)
    return float(min(max(float(f"{drawn:.6g}"), low), high))


def list_points(tuning: Tuning) -> Iterator[tuple[int, Point]]:
    """Lists points to check, each with the place in `over` that it is about: every value alone, then all combinations
    where these are few."""
    ends: Sequence[tuple[Value, ...]] = [list_ends(each) for each in tuning.over]
    for index, values in enumerate(ends):
        yield from ((index, {tuning.over[index].key: value}) for value in values)
    if len(ends) > 1 and math.prod(map(len, ends)) <= MAX_POINTS:
        keys = [each.key for each in tuning.over]
        yield from ((len(ends) - 1, dict(zip(keys, point, strict=True))) for point in itertools.product(*ends))


def trial_recipe(recipe: Recipe, point: Point, solved: Mapping[str, float | None]) -> Recipe:
    """Returns the recipe of one run: with the values of a point, with the values solved for all runs (`None` takes a
    value away), and with its own cost and that of the paid steps before it as its budget. It is no release, so nothing
    is signed and no report is written.

    Raises:
        PointError: the values make no recipe.
    """
    fixed = {"budget.epsilon": "auto", "release.report": False, "release.sign": None, "tuning": None}
    return set_values(recipe, {**point, **solved, **fixed})
