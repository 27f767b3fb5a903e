"""A layer that leaves records as they are, and changes the gradients that pass it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Change = Callable[[Tensor, Tensor], Tensor]
"""(gradients (B, …), what came forward (B, …)) -> gradients (B, …)."""


class _Changed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        ctx.save_for_backward(x)
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return ctx.change(gradients[0], x), None


class ChangedGradients(nn.Module):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return _Changed.apply(x, self.change)  # type: ignore[no-any-return]
