"""Models of a convex loss: linear ones, and a single number. All start at zero: no start is better."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn


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
