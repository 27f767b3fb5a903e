"""Checks of what is learned: the mechanism can learn such a label, and the loss is one of it."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.data.checks import check_data
from dprecipe.data.facts import describe_data
from dprecipe.data.sources.base import ColumnLabelled
from dprecipe.data.targets import ClassTarget, NumberTarget, Target
from dprecipe.faults import Finding
from dprecipe.language.training import Training
from dprecipe.language.words import join_with_or
from dprecipe.mechanisms.table import list_kinds
from dprecipe.planning.learning import has_student, is_convex
from dprecipe.recipe.root import Recipe


def check_label(recipe: Recipe) -> Iterator[Finding]:
    """The mechanism learns labels of this kind."""
    if check_data(recipe.data):
        return  # other rules report it
    target = describe_data(recipe.data).target
    if has_student(recipe) and not isinstance(target, ClassTarget):
        others = join_with_or(list_kinds(lambda mechanism: not mechanism.has_student and not mechanism.is_convex))
        yield Finding(
            "R310",
            f"{recipe.mechanism.kind} counts votes for classes, and the label is {target.describe()}",
            "declare the classes of the label: `values`, or `classes`; or "
            f"set mechanism.kind to {others}, which learns such labels",
            "data.train.label" if isinstance(recipe.data.train, ColumnLabelled) else "data.train",
        )
        return
    yield from check_loss(recipe.training, target, _own_loss(recipe))


def _own_loss(recipe: Recipe) -> str:
    """Where the loss comes from, if not from `training`; empty if it does."""
    if is_convex(recipe):
        return f"{recipe.mechanism.kind} has proven constants for the loss of model.kind, and takes no other"
    return "training.robustness chooses the loss of a student" if has_student(recipe) else ""


def check_loss(training: Training, target: Target, own_loss: str = "") -> Iterator[Finding]:
    """`training.loss` is one of the label. `own_loss`: why the mechanism takes none; empty if it does."""
    if training.loss is None:
        return
    if own_loss:
        yield Finding("R306", own_loss, "remove training.loss", "training.loss")
    elif not isinstance(target, NumberTarget):
        loss = "cross entropy" if isinstance(target, ClassTarget) else "that of a Poisson distribution"
        yield Finding(
            "R311",
            f"{training.loss.kind} is a loss of numbers, and the label is {target.describe()}, whose loss is {loss}",
            "remove training.loss; or declare the label as a number, `range: [lowest, highest]`",
            "training.loss",
        )
