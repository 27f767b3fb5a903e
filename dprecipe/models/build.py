"""A model block to a torch module with its initial weights."""

from __future__ import annotations

import math

import torch
from torch import nn

from dprecipe.models.schema import Cnn, GradientBoosting, LogisticRegression, Mlp, Model, RandomForest
from dprecipe.models.zoo.cnn import cnn
from dprecipe.models.zoo.forest import Forest
from dprecipe.models.zoo.linear import logistic_regression, mlp


def build(model: Model, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The module: (B, *shape) float32 features to (B, classes) logits.

    Trees are not grown yet: one leaf, for which all classes are alike, until `load_state_dict` gives them their own.

    Guarantees: the weights are a function of (model, shape, classes, seed) and of the torch version; the
    global generator of random numbers is left as it was found. `shape` has to pass `dprecipe.models.checks`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match model:
            case LogisticRegression():
                return logistic_regression(model, shape, classes)
            case Mlp():
                return mlp(model, shape, classes)
            case Cnn():
                return cnn(model, shape, classes)
            case RandomForest() | GradientBoosting():
                return Forest(math.prod(shape), classes, averaged=isinstance(model, RandomForest))
