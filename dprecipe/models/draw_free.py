"""Modules that draw no random numbers: their steps need no seed."""

from __future__ import annotations

from torch import nn

from dprecipe.models.lora import LowRankLayer
from dprecipe.models.zoo.convex import InUnits, LocationModel
from dprecipe.models.zoo.layers import StandardisedConv2d
from dprecipe.models.zoo.transformer import Layer, TextTransformer
from dprecipe.models.zoo.wide_resnet import ResidualBlock

DRAW_FREE = frozenset(
    {
        *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten),
        *(nn.Linear, nn.Bilinear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d),
        *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        *(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
        *(nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.Softmax, nn.LogSoftmax),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
        *(StandardisedConv2d, ResidualBlock, TextTransformer, Layer, LowRankLayer, InUnits, LocationModel),
    }
)
"""Layers that never draw, by exact type: a subclass may."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def is_draw_free(module: nn.Module) -> bool:
    """Whether no call of the module, nor its backward pass, can draw a random number.

    Guarantees: True only if every submodule is of a type in `DRAW_FREE`, without hooks and without a `forward` of its
    own. Everything else counts as drawing, whether it does or not.
    """
    return all(
        type(layer) in DRAW_FREE and "forward" not in vars(layer) and not any(getattr(layer, hooks) for hooks in _HOOKS)
        for layer in module.modules()
    )
