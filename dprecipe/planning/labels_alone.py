"""Checks of recipes whose release is labels alone: no model, and perhaps no records that a run opens."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.table import list_kinds
from dprecipe.faults import Finding
from dprecipe.language.training import Training
from dprecipe.language.words import join_with_or
from dprecipe.models.schema import NoModel
from dprecipe.planning.learning import has_student
from dprecipe.recipe.root import Recipe


def check_no_model(recipe: Recipe) -> Iterator[Finding]:
    """Checks that a recipe without a model releases labels, and has nothing that only a model gives a meaning."""
    if not isinstance(recipe.model, NoModel):
        return
    if not has_student(recipe):
        kinds = join_with_or(list_kinds(lambda mechanism: mechanism.has_student))
        yield Finding(
            "R279",
            f"{recipe.mechanism.kind} releases a model and nothing else, and there is none",
            "choose a model.kind" + (f"; or mechanism.kind {kinds}, which can release labels alone" if kinds else ""),
            "model.kind",
        )
        return
    if not recipe.release.labels:
        yield Finding(
            "R279",
            "nothing would be released: there is no model, and labels stay private",
            "add release: {labels: true}; or choose a model.kind, the student of the labels",
            "release",
        )
    if recipe.training != Training():
        yield Finding("R304", "there is no model: training has no effect", "remove training", "training")
    if recipe.data.test is not None:
        yield Finding("R279", "there is no model, so nothing is scored on data.test", "remove data.test", "data.test")


def check_elsewhere(recipe: Recipe) -> Iterator[Finding]:
    """Checks that nothing needs features of records that are elsewhere."""
    data = recipe.data
    if not data.is_elsewhere:
        return
    if not isinstance(recipe.model, NoModel):
        yield Finding(
            "R279",
            f"the records are elsewhere: nothing says what features a {recipe.model.kind} would read",
            "write model: {kind: none}, and labels are released alone; or name the records in data.train",
            "model.kind",
        )
        return
    unused = {
        "data.public": data.public is not None,
        "data.preprocess": bool(data.preprocess),
        "data.unit": data.unit != "record",
    }
    for path in (path for path, is_written in unused.items() if is_written):
        yield Finding("R279", f"the records are elsewhere: {path} has no effect", f"remove {path}", path)
