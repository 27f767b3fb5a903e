"""Checks of `tuning.score`: public records are free, private ones are counted under noise that every run pays for."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.data.checks import check_data
from dprecipe.data.facts import describe_data
from dprecipe.data.targets import ClassTarget, SeveralTarget, Target, TokenTarget
from dprecipe.faults import Finding
from dprecipe.language.tuning import TuningScore
from dprecipe.language.words import join_with_or
from dprecipe.recipe.root import Recipe


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
    return "take records as data.test whose publication harms nobody, with access: public"


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
