"""Layers of the zoo that torch does not have."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

MIN_VARIANCE = 1e-4
"""Least variance of a kernel, times its inputs: a constant kernel becomes zero and not infinite."""


@final
class StandardisedConv2d(nn.Conv2d):
    """A convolution whose kernels are standardised wherever they are used: mean 0, variance 1 / inputs, each by itself.

    It reads no statistics of records: the weights alone say what is used. Padding is by zeros.

    Source: S. Qiao, H. Wang, C. Liu, W. Shen, A. Yuille, "Micro-Batch Training with Batch-Channel Normalization and
    Weight Standardization", 2019; over the root of the inputs as in A. Brock, S. De, S. Smith, "Characterizing Signal
    Propagation to Close the Performance Gap in Unnormalized ResNets", ICLR 2021, without its gains: the normalisation
    that follows has them.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        weight = standardise_weights(self.weight)
        return functional.conv2d(inputs, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def standardise_weights(weight: Tensor) -> Tensor:
    """Maps weights (O, …) to kernels of mean 0 and variance 1 / I, where each has I entries."""
    flat_OI = weight.flatten(1)
    centred_OI = flat_OI - flat_OI.mean(1, keepdim=True)
    squares_O1 = centred_OI.square().sum(1, keepdim=True)  # the variance times I
    return (centred_OI * torch.rsqrt(squares_O1.clamp_min(MIN_VARIANCE))).view_as(weight)


@final
class TransposedLinear(nn.Module):
    """Linear layer, (…, I) to (…, O), whose weight lies as (I, O), as in GPT-2's checkpoints."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self.weight.T, self.bias)


@final
class WideRMSNorm(nn.Module):
    """Normalisation, (…, W) to (…, W): values over the root of their mean square, times weight, in its precision.

    torch's own takes values in bfloat16 as they are, and has no fused kernel for them beside weights in single
    precision: it warns, and computes step by step.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.normalized_shape, self.eps = (width,), eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.rms_norm(inputs.to(self.weight.dtype), self.normalized_shape, self.weight, self.eps)


@final
class OffsetRMSNorm(nn.Module):
    """Normalisation like `WideRMSNorm`, times 1 + weight, as in Gemma."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.normalized_shape, self.eps = (width,), eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.rms_norm(inputs.to(self.weight.dtype), self.normalized_shape, 1.0 + self.weight, self.eps)
