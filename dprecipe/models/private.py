"""Layers that a private model can't have: those that mix records, or keep statistics of them.

A clipped gradient bounds what a record does through the loss. A running mean or variance is a second way out
of the data that no clipping sees, whether its layer is trained, frozen, or has no parameters at all; and a
layer that normalises over the batch makes every record's output depend on the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dprecipe.faults import Finding

RUNNING = ("running_", "moving_", "num_batches_tracked")
"""Prefixes of buffers that follow the data, in torch and in the libraries built on it."""
MAX_GROUPS = 16


def inspect_module(module: nn.Module) -> list[Finding]:
    """Returns the layers of a module, at any depth, that can't be trained privately; each with its replacement.

    Every submodule is looked at, by `isinstance` and not by exact type, trainable or not. Dropout is fine: it
    draws for each record on its own. What no list can know is caught by `dprecipe.training.probe.program`.
    """
    return [finding for name, layer in module.named_modules() for finding in _layer(name, layer)]


def _layer(name: str, layer: nn.Module) -> Iterator[Finding]:
    layer_text = f"layer {name!r} ({type(layer).__name__})" if name else f"the module ({type(layer).__name__})"
    if isinstance(layer, _InstanceNorm):  # a _NormBase too, and fine without running statistics
        if layer.track_running_stats:
            yield Finding(
                "P121",
                f"{layer_text} keeps running statistics of private records",
                "build it with track_running_stats=False",
                "model",
            )
    elif isinstance(layer, _BatchNorm):
        yield Finding(
            "P120",
            f"{layer_text} normalises over the batch: it mixes records, and its running statistics "
            f"follow private data, "
            "frozen or not",
            f"replace it by {_group_norm(layer.num_features)}, which looks at one record at a time",
            "model",
        )
    elif isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        yield Finding(
            "P123",
            f"{layer_text} has max_norm={layer.max_norm:g}: it shortens the rows that records look up, so that weights "
            "move without noise",
            "build it with max_norm=None; to bound its rows, divide them by their norm in forward",
            "model",
        )
    else:
        buffers = [n for n, _ in layer.named_buffers(recurse=False) if n.startswith(RUNNING)]
        if buffers:
            yield Finding(
                "P122",
                f"{layer_text} keeps running statistics: {', '.join(buffers)}",
                "replace it by a layer that looks at one record at a time, such as torch.nn.GroupNorm or LayerNorm",
                "model",
            )


def _group_norm(features: int) -> str:
    # Lazy layers do not know their width yet.
    groups = next((g for g in range(MAX_GROUPS, 0, -1) if features % g == 0), 1)
    return f"torch.nn.GroupNorm({groups}, {features})" if features > 0 else "torch.nn.GroupNorm"
