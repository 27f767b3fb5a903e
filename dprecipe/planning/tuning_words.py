"""Describes a tuned run to people: the number of runs, and the values that they try."""

from __future__ import annotations

from dprecipe.language.tuning import Candidates, Tuning
from dprecipe.language.words import join_with_or


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
