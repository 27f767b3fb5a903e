"""Checks of the model block against the shape and the labels of the data. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.data.facts import DataFacts
from dprecipe.faults import Finding
from dprecipe.models.geometry import smallest
from dprecipe.models.schema import Cnn, HuberSvm, Model, Regression


def check(model: Model, facts: DataFacts) -> list[Finding]:
    """What keeps this model from reading these features or learning these labels (R25x); paths are set, places not."""
    return [*_labels(model, facts), *(_images(model, facts) if isinstance(model, Cnn) else [])]


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
            "choose model.kind least_squares, huber_regression or location, or declare the classes of the label",
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
