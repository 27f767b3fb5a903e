"""Losses: one value a record, so that nothing of the loss can escape clipping."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """(N, C), (N,) -> (N,): negative log-likelihood of each record's label."""
    return functional.cross_entropy(outputs, labels, reduction="none")
