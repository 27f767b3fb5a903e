"""A model whose products of matrices and convolutions are computed in bfloat16.

Parameters stay in single precision, and so do the outputs, the norms of gradients, and all that is added up: bfloat16
is used only within one record's forward and backward pass.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

HALF = 0.05
"""Relative error of a gradient in bfloat16, between two ways to compute it: eight bits, and sums of such numbers."""


def gradient_tolerance(model: nn.Module, single: float) -> float:
    """Returns the relative error by which equal gradients may differ: `single`, or `HALF` if the model is reduced."""
    return HALF if any(isinstance(layer, Reduced) for layer in model.modules()) else single


@final
class Reduced(nn.Module):
    """`model`, with its parameters, in mixed precision: whatever torch's autocast takes to bfloat16 is in bfloat16."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        device = next(self.model.parameters()).device
        # Casts of weights are not kept: a parameter may be another one in the next pass.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            outputs: Tensor = self.model(*args, **kwargs)
        return outputs.float()
