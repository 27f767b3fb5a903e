"""Checks of the model block against the shape of the data. No torch."""

from __future__ import annotations

from dprecipe.data.facts import DataFacts
from dprecipe.faults import Finding
from dprecipe.models.geometry import smallest
from dprecipe.models.schema import Cnn, Model


def check(model: Model, facts: DataFacts) -> list[Finding]:
    """What keeps this model from reading these features (R25x); paths are set, places are not."""
    if not isinstance(model, Cnn):
        return []
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
