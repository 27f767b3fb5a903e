"""Models of a convex loss: linear classifiers, linear regressions, and a single number.

All start at zero: no start is better. Regressions learn in [-1, 1], where targets are while they are read, and end with
a constant map back to the units of the target, so that a released module needs nobody to scale what it predicts.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

Range = tuple[float, float]


def build_linear(shape: tuple[int, ...], outputs: int, bias: bool) -> nn.Sequential:
    """Flattened features (B, *shape) to `outputs` sums, (B, outputs), at zero."""
    layer = nn.Linear(math.prod(shape), outputs, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), layer)


def build_regression(shape: tuple[int, ...], bias: bool, target: Range) -> nn.Sequential:
    """Linear regression: (B, *shape) to predictions (B, 1), float64, in the units of a target of this range."""
    return nn.Sequential(*build_linear(shape, 1, bias), InUnits(target))


@final
class LocationModel(nn.Module):
    """One number for all records, whatever their features: (B, …) to (B, 1), float64, in the units of the target.

    `location`, (1,), is that number mapped to [-1, 1].
    """

    def __init__(self, target: Range) -> None:
        super().__init__()
        self.location = nn.Parameter(torch.zeros(1))
        self.in_units = InUnits(target)

    def forward(self, features: Tensor) -> Tensor:
        predicted: Tensor = self.in_units(self.location.expand(len(features), 1))
        return predicted


@final
class InUnits(nn.Module):
    """See `in_units`; no parameters, no buffers."""

    def __init__(self, target: Range) -> None:
        super().__init__()
        self._target = target

    def forward(self, mapped: Tensor) -> Tensor:
        return in_units(mapped, self._target)

    def extra_repr(self) -> str:
        return f"{self._target[0]:g}, {self._target[1]:g}"


def in_units(mapped: Tensor, target: Range) -> Tensor:
    """From [-1, 1] to the range `target`, constants of the recipe; what is outside stays outside.

    In double precision: a range may be narrow and far from zero.
    """
    lowest, highest = target
    half = highest / 2 - lowest / 2  # halves: the range itself may overflow
    return mapped.double() * half + (lowest / 2 + highest / 2)
