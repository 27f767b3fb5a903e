"""Wide residual networks for images (C, H, W), as private training likes them: nothing is normalised over a batch.

Source: S. Zagoruyko, N. Komodakis, "Wide Residual Networks", BMVC 2016; group normalisation, standardised kernels and
the order of layers (activation, normalisation, convolution) of S. De, L. Berrada, J. Hayes, S. L. Smith, B. Balle,
"Unlocking High-Accuracy Differentially Private Image Classification through Scale", 2022, section 3.
"""

from __future__ import annotations

from typing import final

from torch import Tensor, nn
from torch.nn import functional

from dprecipe.models.geometry import GROUPS, block_channels
from dprecipe.models.schema import WideResNet
from dprecipe.models.zoo.layers import StandardisedConv2d


def build_wide_resnet(spec: WideResNet, channels: int, classes: int) -> nn.Sequential:
    """Images (B, channels, H, W) to logits (B, classes); 2.7 million parameters at depth 16 and width 4."""
    kind = StandardisedConv2d if spec.weight_standardisation else nn.Conv2d
    blocks = [ResidualBlock(kind, *block) for block in block_channels(spec.depth, spec.width)]
    last = 64 * spec.width
    head = nn.Linear(last, classes)
    network = nn.Sequential(
        kind(channels, 16, 3, padding=1),
        *blocks,
        nn.ReLU(),
        nn.GroupNorm(GROUPS, last),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        head,
    )
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return network


@final
class ResidualBlock(nn.Module):
    """Two convolutions and a way around them, which has a convolution of its own where a stage begins."""

    def __init__(self, kind: type[nn.Conv2d], before: int, after: int, stride: int, first: bool) -> None:
        super().__init__()
        self.around: nn.Sequential | None = None
        if first:
            self.around = nn.Sequential(nn.ReLU(), nn.GroupNorm(GROUPS, before), kind(before, after, 1, stride))
        self.norm_1 = nn.GroupNorm(GROUPS, before)
        self.conv_1 = kind(before, after, 3, stride, padding=1)
        self.norm_2 = nn.GroupNorm(GROUPS, after)
        self.conv_2 = kind(after, after, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv_1(self.norm_1(functional.relu(x)))
        inner = self.conv_2(self.norm_2(functional.relu(inner)))
        added: Tensor = inner + (x if self.around is None else self.around(x))
        return added
