"""Linear models and a single number, whose losses are convex, and the multi-layer perceptron.

Those of a convex loss start at zero: no start is better.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from dprecipe.models.schema import Mlp


def build_linear(shape: tuple[int, ...], outputs: int, bias: bool) -> nn.Sequential:
    """Builds a layer from flattened features (B, *shape) to `outputs` sums, (B, outputs), starting at zero."""
    layer = nn.Linear(math.prod(shape), outputs, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), layer)


@final
class LocationModel(nn.Module):
    """One number for all records, whatever their features: (B, …) to (B, 1).

    `location`, (1,), is that number mapped to [-1, 1].
    """

    def __init__(self) -> None:
        super().__init__()
        self.location = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        return self.location.expand(len(features), 1)


ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def build_mlp(spec: Mlp, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Builds hidden layers of the given widths, each followed by the activation."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for hidden in spec.hidden:
        layers += [nn.Linear(width, hidden), ACTIVATIONS[spec.activation]()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, classes))
