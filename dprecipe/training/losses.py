"""Losses: one value a record, so that nothing of the loss can escape clipping."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """(N, C), (N,) -> (N,): negative log-likelihood of each record's label."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def generalised_cross_entropy(outputs: Tensor, labels: Tensor, q: float) -> Tensor:
    """(N, C), (N,) -> (N,): (1 - p^q) / q, with p the probability of the label; cross-entropy for q = 0.

    Wrong labels pull less: the gradient is cross-entropy's times p^q. Source: Z. Zhang, M. Sabuncu, "Generalized Cross
    Entropy Loss for Training Deep Neural Networks with Noisy Labels", NeurIPS 2018, equation 6.
    """
    losses = cross_entropy(outputs, labels)
    return losses if q == 0 else -torch.expm1(-q * losses) / q
