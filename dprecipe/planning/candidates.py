"""Candidates of a tuned recipe, and the score that chooses: values of keys, points to check, the recipe of one run.

Public records are a free score; private ones are counted under noise that every run pays for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from dprecipe.data.checks import check_data
from dprecipe.data.facts import describe_data
from dprecipe.data.targets import ClassTarget, SeveralTarget, Target, TokenTarget
from dprecipe.faults import Finding
from dprecipe.language.tuning import Candidates, Tuning, TuningScore, Value
from dprecipe.language.words import join_with_or
from dprecipe.recipe.root import Recipe, set_values

Point = Mapping[str, Value]
"""A value for each key of `tuning.over`."""
MAX_POINTS = 64
"""Largest number of combinations that are all checked before a run; if there are more, each value is checked with the
others as the recipe has them."""


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
    ends: Sequence[tuple[Value, ...]] = [
        tuple(each.range or ()) if each.values is None else each.values for each in tuning.over
    ]
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


def check_score(recipe: Recipe, score: TuningScore) -> Iterator[Finding]:
    """Checks that the runs are compared by a score that costs nothing, or that they pay for."""
    test, noise = recipe.data.test, score.noise_multiplier
    if test is None:
        yield Finding(
            "P184",
            "the runs are compared by a score on held-out records, and there are no such records",
            "add data.test, a source of public records, or remove tuning",
            "tuning.score",
        )
    elif test.access == "public":
        yield from _check_public(recipe, score)
    elif noise is None:
        yield Finding(
            "P184",
            "the runs are compared by a score on public records, and data.test is not declared public; a score on "
            "private records has to be paid for by every run",
            "; or ".join([_declare_public(recipe), *_pay(recipe, score)]),
            "tuning.score",
        )
    else:
        yield from _check_paid(recipe, score)


def _declare_public(recipe: Recipe) -> str:
    if recipe.data.split is not None:
        return "name other records as data.test, with access: public, if publishing those harms nobody"
    return "take records as data.test whose publication harms no one, with access: public"


def _pay(recipe: Recipe, score: TuningScore) -> list[str]:
    """Says how a score on private records is paid for; nothing where none can be."""
    if check_data(recipe.data) or recipe.data.unit != "record" or not describe_data(recipe.data).target.is_choice:
        return []
    by = "" if score.metric == "accuracy" else ", with tuning.score.metric: accuracy"
    return [
        "set tuning.score.noise_multiplier (a thirtieth of the number of these records is a good start): every run "
        f"then pays for a noisy number of right answers{by}"
    ]


def list_metrics(target: Target) -> list[str]:
    """Returns the scores on public records by which models of this label can be compared."""
    match target:
        case ClassTarget():
            return ["accuracy", "balanced_accuracy", "auc", "average_precision", "loss"]
        case SeveralTarget():
            return ["accuracy", "auc", "average_precision", "loss"]
        case TokenTarget():
            return ["loss"]
        case _:
            return ["mean_absolute_error", "loss"]


def _check_public(recipe: Recipe, score: TuningScore) -> Iterator[Finding]:
    if check_data(recipe.data):
        return  # other rules report it
    known = list_metrics(describe_data(recipe.data).target)
    if score.metric not in known:
        yield Finding(
            "P184",
            f"no {score.metric} is measured of this model",
            f"set tuning.score.metric to {join_with_or(known)}",
            "tuning.score.metric",
        )
    if score.noise_multiplier is not None:
        yield Finding(
            "P184",
            "data.test is declared public, and every run would pay for noise on a score that costs nothing",
            "remove tuning.score.noise_multiplier",
            "tuning.score.noise_multiplier",
        )


def _check_paid(recipe: Recipe, score: TuningScore) -> Iterator[Finding]:
    if check_data(recipe.data):
        return  # other rules report it
    if recipe.data.unit != "record":
        yield Finding(
            "P184",
            "held-out records are counted one by one, and data.unit protects units that may have many of them",
            f"{_declare_public(recipe)}, and remove tuning.score.noise_multiplier; or remove tuning",
            "tuning.score.noise_multiplier",
        )
    target = describe_data(recipe.data).target
    if not target.is_choice:
        yield Finding(
            "P184",
            f"the paid score is a number of right answers, and this model predicts {target.describe()}",
            f"{_declare_public(recipe)}, and remove tuning.score.noise_multiplier; or remove tuning",
            "tuning.score.noise_multiplier",
        )
    elif score.metric != "accuracy":
        yield Finding(
            "P184",
            f"noise is proved to cover a number of right answers, and no {score.metric}",
            f"{_declare_public(recipe)}, and remove tuning.score.noise_multiplier; "
            "or set tuning.score.metric to accuracy",
            "tuning.score.metric",
        )


def describe_runs(block: Tuning) -> str:
    """Describes the number of runs, and how likely a single one is."""
    from dprecipe.privacy.tuning.runs import chance_of_one, make_runs

    if block.runs.kind == "fixed":
        return f"{block.runs.count}, which is no secret"
    name, mean, shape = block.runs.selection
    shown = "truncated negative binomial" if name == "negative_binomial" else "truncated Poisson"
    more = "" if shape is None else f", shape {shape:g}"
    one = chance_of_one(make_runs(name, mean, shape))
    return f"{mean:g} expected ({shown}{more}; one alone with a chance of {one:.2g}), drawn in secret"


def describe_candidates(each: Candidates) -> str:
    """Describes a key and its candidates."""
    if each.values is not None:
        return f"{each.key}: {join_with_or([str(value) for value in each.values])}"
    low, high = each.range or (0.0, 0.0)
    return f"{each.key}: {low:g} to {high:g}, on a {each.scale} scale"


def describe_score(block: Tuning) -> str:
    """Describes the score by which one run is chosen."""
    score = block.score
    if score.noise_multiplier is None:
        return f"{score.metric} on data.{score.records}"
    noise = f"noise of standard deviation {score.noise_multiplier:g}"
    return f"the number of right answers on data.{score.records}, with {noise}, which every run pays for"


def describe_comparison(block: Tuning) -> str:
    """Describes how runs are compared, as the bound presumes it."""
    if block.score.noise_multiplier is None:
        return "runs are compared by what they release and public records alone, at their end"
    return (
        "runs are compared at their end by a noisy number of right answers among private held-out records, each "
        "predicted by itself; each run is charged for it beside training, as if the same people were in both sets of "
        "records"
    )
