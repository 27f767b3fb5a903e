"""Units of several rows as records of the engine. The rows of a unit go through the model together, and the mean of
their losses is the unit's loss. Its gradient is therefore the mean of its rows' gradients, and comes from the one
backward pass of the batch.

Rows are a unit's records, the augmented copies of a record, or both. Units of fewer rows are padded with copies that
the mean leaves out; their labels mark them (`mark_padding`).

Legend: U units, R rows of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from dprecipe.data.omitted import OMITTED

Loss = Callable[[Tensor, Tensor], Tensor]
PADDING = OMITTED
"""The label of a row that only pads its unit; NaN where labels are not whole numbers."""


def mark_padding(labels: Tensor, padded: Tensor) -> Tensor:
    """Returns the labels (U, R), with those of rows that only pad their unit marked."""
    return labels.masked_fill(padded, math.nan if labels.is_floating_point() else PADDING)


def is_padding(labels: Tensor) -> Tensor:
    """Returns a mask of the labels that `mark_padding` has marked."""
    return labels.isnan() if labels.is_floating_point() else labels == PADDING


@final
class RowwiseModel(nn.Module):
    """`model`, with its parameters, for features (U, R, …): outputs (U, R, …)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, features: Tensor) -> Tensor:
        return torch.unflatten(self.model(features.flatten(0, 1)), 0, features.shape[:2])


@final
@dataclass(frozen=True, slots=True)
class MeanLoss:
    """(outputs (U, R, …), labels (U, R)) -> (U,): the mean of `loss` over the rows that are not padding, nor records
    without a label; 0 where there are none."""

    loss: Loss

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        real_UR = ~is_padding(labels)
        losses = self.loss(outputs.flatten(0, 1), torch.where(real_UR, labels, 0).flatten())
        losses_UR = torch.where(real_UR, torch.unflatten(losses, 0, labels.shape), 0.0)
        return losses_UR.sum(1) / real_UR.sum(1).clamp(min=1)
