"""Checks of the model block against the shape and the labels of the data. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.data.facts import DataFacts
from dprecipe.faults import Finding
from dprecipe.models.geometry import smallest
from dprecipe.models.schema import Cnn, Convex, HuberSvm, LogisticRegression, Model, Regression


def check(model: Model, facts: DataFacts) -> list[Finding]:
    """What keeps this model from reading these features or learning these labels (R25x); paths are set, places not."""
    return [*_labels(model, facts), *(_images(model, facts) if isinstance(model, Cnn) else [])]


def useless(model: Model, mechanism: str, *, fitted: bool) -> Iterator[Finding]:
    """What a mechanism other than pnsgd has no use for (R280); `fitted`: the model is fitted at once, without steps."""
    if isinstance(model, Convex):
        regression = isinstance(model, Regression)
        yield Finding(
            "R280",
            f"a {model.kind} is trained by pnsgd, which needs its constants; {mechanism} does not know it",
            "use mechanism.kind pnsgd" + ("" if regression else ", or choose model.kind logistic_regression"),
            "model.kind",
        )
    if not isinstance(model, LogisticRegression):
        return
    if model.l2:
        yield Finding(
            "R280",
            f"l2 is the regulariser of pnsgd; {mechanism} would not read it",
            "remove model.l2; with optimizer sgd or adam, training.optimizer.weight_decay shrinks the weights",
            "model.l2",
        )
    if fitted and not model.bias:
        yield Finding(
            "R280",
            "a logistic_regression that is fitted at once has a bias: it is what keeps a class without records low",
            "remove model.bias, or train the model by steps",
            "model.bias",
        )


def _labels(model: Model, facts: DataFacts) -> Iterator[Finding]:
    if isinstance(model, Regression) and facts.target is None:
        yield Finding(
            "R252",
            f"{model.kind} predicts a number, and the labels are {facts.classes} classes",
            "declare the label as a number, `range: [lowest, highest]`, or choose model.kind logistic_regression",
            "model.kind",
        )
    elif not isinstance(model, Regression) and facts.target is not None:
        yield Finding(
            "R253",
            f"{model.kind} tells classes apart, and the label is a number",
            "choose model.kind least_squares, huber_regression or location, with mechanism.kind pnsgd, or declare the "
            "classes of the label",
            "model.kind",
        )
    elif isinstance(model, HuberSvm) and facts.classes != 2:
        yield Finding(
            "R254",
            f"huber_svm tells two classes apart, and there are {facts.classes}",
            "choose model.kind softmax_regression",
            "model.kind",
        )


def _images(model: Cnn, facts: DataFacts) -> list[Finding]:
    shape = "×".join(map(str, facts.shape))
    if len(facts.shape) != 3:
        return [
            Finding(
                "R250",
                f"a cnn reads images, and the features are a vector of {shape}",
                "choose model.kind mlp or logistic_regression"
                + (", or remove data.preprocess flatten" if len(facts.source_shape) == 3 else ""),
                "model.kind",
            )
        ]
    needed = smallest(model.preset)
    if min(facts.shape[1:]) < needed:
        fits = [p for p in ("tempered-cifar", "lenet") if smallest(p) <= min(facts.shape[1:])]
        return [
            Finding(
                "R251",
                f"preset {model.preset} needs images of {needed}×{needed} or more, and these are {shape} "
                "(channels×height×width)",
                f"choose {' or '.join(f'preset {p}' for p in fits) or 'model.kind mlp'}",
                "model.preset",
            )
        ]
    return []
