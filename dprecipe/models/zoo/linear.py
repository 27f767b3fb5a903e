"""The multi-layer perceptron."""

from __future__ import annotations

import math

from torch import nn

from dprecipe.models.schema import Mlp

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def build_mlp(spec: Mlp, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds hidden layers of the given widths, each followed by the activation."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for hidden in spec.hidden:
        layers += [nn.Linear(width, hidden), ACTIVATIONS[spec.activation]()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, classes))
