"""Modules from Python that tests of several folders train."""

from __future__ import annotations

from torch import Tensor, nn


class DigitsNet(nn.Module):
    """A layer that takes images of 8 × 8 pixels."""

    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.linear = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))
