"""Checks of the label and its loss: the mechanism can learn such a label, and the loss fits it."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.table import list_kinds, mechanism_of
from dprecipe.data.checks import check_data
from dprecipe.data.facts import describe_data
from dprecipe.data.sources.base import ColumnLabelled
from dprecipe.data.targets import (
    ClassTarget,
    CountTarget,
    NumberTarget,
    SeveralTarget,
    Target,
    TokenTarget,
    name_classes,
)
from dprecipe.faults import Finding
from dprecipe.language.training import TokenLoss, Training
from dprecipe.language.words import join_with_or
from dprecipe.planning.learning import has_student, is_convex
from dprecipe.recipe.root import Recipe


def check_label(recipe: Recipe) -> Iterator[Finding]:
    """Checks that the mechanism learns labels of this kind."""
    if check_data(recipe.data):
        return  # other rules report it
    target = describe_data(recipe.data).target
    yield from _check_omitted(recipe)
    others = join_with_or(list_kinds(lambda mechanism: not mechanism.has_student and not mechanism.is_convex))
    if isinstance(target, TokenTarget) and (is_convex(recipe) or has_student(recipe)):
        yield Finding(
            "R310",
            f"{recipe.mechanism.kind} learns classes or numbers, and the label is {target.describe()}: a text has a "
            "loss of many tokens, by a network",
            f"set mechanism.kind to {others}, with model.kind causal_lm",
            _place_of_label(recipe),
        )
        return
    if is_convex(recipe) and isinstance(target, SeveralTarget):
        yield Finding(
            "R310",
            f"{recipe.mechanism.kind} has proven constants for losses of one class or one number, and the label is "
            f"{target.describe()}",
            f"set mechanism.kind to {others}, with model.kind linear, which learns such labels; or learn one name at a "
            "time: label.column, with values: ['no', 'yes']",
            _place_of_label(recipe),
        )
        return
    if has_student(recipe) and not isinstance(target, ClassTarget):
        yield Finding(
            "R310",
            f"{recipe.mechanism.kind} counts votes for classes, and the label is {target.describe()}",
            "declare the classes of the label: `values`, or `classes`; or "
            f"set mechanism.kind to {others}, which learns such labels",
            _place_of_label(recipe),
        )
        return
    yield from check_loss(recipe.training, target, _own_loss(recipe))


def _check_omitted(recipe: Recipe) -> Iterator[Finding]:
    """Refuses labels that may be missing where a record can't take part with a gradient of zero."""
    kind = recipe.mechanism.kind
    if recipe.data.omits_records and not mechanism_of(kind).can_omit_records:
        able = join_with_or(list_kinds(lambda mechanism: mechanism.can_omit_records))
        yield Finding(
            "R310",
            f"{kind} learns from the label of every record: there is no account of records without one",
            f"remove `missing`, and the records without a label from the file; or set mechanism.kind to {able}",
            f"{_place_of_label(recipe)}.missing",
        )


def _place_of_label(recipe: Recipe) -> str:
    return "data.train.label" if isinstance(recipe.data.train, ColumnLabelled) else "data.train"


def _own_loss(recipe: Recipe) -> str:
    """Returns the source of the loss if it is not `training`; empty if it is."""
    if is_convex(recipe):
        return f"{recipe.mechanism.kind} has proven constants for the loss of model.kind, and takes no other"
    return "training.robustness chooses the loss of a student" if has_student(recipe) else ""


def check_loss(training: Training, target: Target, own_loss: str = "") -> Iterator[Finding]:
    """Checks that `training.loss`, `class_weights` and `label_smoothing` fit the label. `own_loss`: why the mechanism
    takes none; empty if it does."""
    yield from _check_weights(training, target, own_loss)
    yield from _check_smoothing(training, target, own_loss)
    if training.loss is None:
        return
    if own_loss:
        yield Finding("R306", own_loss, "remove training.loss", "training.loss")
    elif training.own_loss:
        if isinstance(target, TokenTarget):
            yield Finding(
                "R311",
                f"a module's own loss is of one row of outputs, and the label is {target.describe()}",
                "remove training.loss",
                "training.loss",
            )
    elif isinstance(training.loss, TokenLoss):
        if not isinstance(target, TokenTarget):
            yield Finding(
                "R311",
                f"next_token is the loss of a text, and the label is {target.describe()}",
                "remove training.loss; or write label: next_token",
                "training.loss",
            )
    elif not isinstance(target, NumberTarget):
        loss = "that of a Poisson distribution" if isinstance(target, CountTarget) else "cross entropy"
        yield Finding(
            "R311",
            f"{training.loss.kind} is a loss of numbers, and the label is {target.describe()}, whose loss is {loss}",
            "remove training.loss; or declare the label as a number, `range: [lowest, highest]`",
            "training.loss",
        )


def _check_smoothing(training: Training, target: Target, own_loss: str) -> Iterator[Finding]:
    if training.label_smoothing is None:
        return
    remedy, path = "remove training.label_smoothing", "training.label_smoothing"
    if own_loss:
        yield Finding("R306", own_loss, remedy, path)
    elif training.own_loss:
        yield Finding("R311", "the module's own loss smooths labels, if any does", remedy, path)
    elif not isinstance(target, ClassTarget):
        yield Finding("R311", f"classes are smoothed, and the label is {target.describe()}", remedy, path)


def _check_weights(training: Training, target: Target, own_loss: str) -> Iterator[Finding]:
    weights, path = training.class_weights, "training.class_weights"
    if weights is None:
        return
    if own_loss:
        yield Finding(
            "R306",
            f"{own_loss}: weights would multiply it",
            "remove training.class_weights; or use a mechanism that clips gradients",
            path,
        )
        return
    if training.own_loss:
        yield Finding(
            "R311",
            "the module's own loss weighs classes, if any does",
            "remove training.class_weights, and multiply by constants in the module's loss",
            path,
        )
        return
    if not isinstance(target, ClassTarget | SeveralTarget):
        yield Finding(
            "R311",
            f"class_weights are for classes, and the label is {target.describe()}",
            "remove training.class_weights",
            path,
        )
        return
    one, many = ("class", "classes") if isinstance(target, ClassTarget) else ("name", "names")
    if isinstance(weights, tuple):
        if len(weights) != target.outputs:
            yield Finding(
                "R311",
                f"there are {target.outputs} {many}, and {len(weights)} weights",
                f"write {target.outputs} weights, in the order of the {many}; or {{{one}: weight}}",
                path,
            )
        return
    unknown = [name for name in weights if name not in name_classes(target)]
    if unknown:
        known = ", ".join(name_classes(target)[:10])
        yield Finding(
            "R311",
            f"{unknown[0]!r} is no declared {one}; the {many} are {known}" + (" …" if target.outputs > 10 else ""),
            "name each class as the label declares it, or by its number where it declares `classes`"
            if isinstance(target, ClassTarget)
            else "write each name as the label declares it; one that is left out has weight 1",
            path,
        )
