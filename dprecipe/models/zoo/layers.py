"""Layers of the zoo that torch does not have."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

MIN_VARIANCE = 1e-4
"""Of a kernel, times its inputs: a constant kernel becomes zero and not infinite."""


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
    """(O, …) to kernels of mean 0 and variance 1 / I, where each has I entries."""
    flat_OI = weight.flatten(1)
    centred_OI = flat_OI - flat_OI.mean(1, keepdim=True)
    squares_O1 = centred_OI.square().sum(1, keepdim=True)  # the variance times I
    return (centred_OI * torch.rsqrt(squares_O1.clamp_min(MIN_VARIANCE))).view_as(weight)
