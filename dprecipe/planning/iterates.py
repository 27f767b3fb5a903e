"""Checks of what a recipe makes of noisy gradients and iterates: a filter, and the best iterate by a public score."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.table import list_kinds, mechanism_of
from dprecipe.data.checks import check_data
from dprecipe.data.facts import describe_data
from dprecipe.faults import Finding
from dprecipe.language.words import join_with_or
from dprecipe.planning.candidates import list_metrics
from dprecipe.recipe.root import Recipe

ALONG = ("accuracy", "loss", "mean_absolute_error")
"""The scores that are measured along a run."""


def check_covered(recipe: Recipe) -> Iterator[Finding]:
    """Refuses both where no gradient and no iterate before the last is released."""
    kind, training = recipe.mechanism.kind, recipe.training
    if mechanism_of(kind).covers_iterates:
        return
    able = join_with_or(list_kinds(lambda mechanism: mechanism.covers_iterates))
    for key, what in (("filter", "releases no noisy gradients"), ("keep", "covers no iterate but the one it releases")):
        if getattr(training, key) is not None:
            yield Finding(
                "R306",
                f"{kind} {what}",
                f"remove training.{key}, or choose mechanism.kind {able}",
                f"training.{key}",
            )


def check_kept(recipe: Recipe) -> Iterator[Finding]:
    """Refuses a choice among iterates by records that are not declared public: it would reveal something of them."""
    keep, test = recipe.training.keep, recipe.data.test
    if keep is None:
        return
    if recipe.tuning is not None:
        yield Finding(
            "P184",
            "the runs of a tuned run are compared at their end, and nothing of them is seen before",
            "remove training.keep, or tuning",
            "training.keep",
        )
    if test is None or test.access != "public":
        yield Finding(
            "P184",
            "the iterates are compared by a score on public records, and "
            + (
                "there is no data.test"
                if test is None
                else "data.test is not declared public: a choice by others would have to be paid for"
            ),
            "take records as data.test whose publication harms no one, with access: public; or remove training.keep",
            "training.keep",
        )
    elif not check_data(recipe.data):
        known = [name for name in list_metrics(describe_data(recipe.data).target) if name in ALONG]
        if keep.by not in known:
            yield Finding(
                "P184",
                f"no {keep.by} of this model is measured along a run",
                f"set training.keep.by to {join_with_or(known)}",
                "training.keep.by",
            )
