"""Modules that draw no random numbers: their steps need no seed."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import _has_any_global_hook as has_hooks_for_all

from dprecipe.models.lora import LowRankLayer
from dprecipe.models.zoo.cnn import ResidualBlock
from dprecipe.models.zoo.layers import StandardisedConv2d
from dprecipe.models.zoo.linear import LocationModel
from dprecipe.models.zoo.transformer import Layer, TextTransformer

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
        *(StandardisedConv2d, ResidualBlock, TextTransformer, Layer, LowRankLayer, LocationModel),
    }
)
"""Layers that never draw, by exact type: a subclass may."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOKS_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def is_draw_free(module: nn.Module) -> bool:
    """Returns True if no call of the module, nor its backward pass, can draw a random number.

    Guarantees: True only if every submodule is of a type in `DRAW_FREE`, has all methods of its type, and neither it
    nor a parameter nor all modules have hooks. Everything else counts as drawing, whether it does or not.
    """
    return (
        not has_hooks_for_all()  # type: ignore[no-untyped-call]
        and all(type(layer) in DRAW_FREE and not _is_altered(layer) for layer in module.modules())
        and not any(getattr(parameter, hooks) for parameter in module.parameters() for hooks in _HOOKS_OF_PARAMETERS)
    )


def _is_altered(layer: nn.Module) -> bool:
    """Returns True if a layer has hooks, or methods other than those of its type."""
    own = any(callable(getattr(type(layer), name, None)) for name in vars(layer))
    return own or any(getattr(layer, hooks) for hooks in _HOOKS)
