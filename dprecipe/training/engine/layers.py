"""What the gradients of each kind of layer are made of.

A layer that is not here is differentiated by itself (`terms.Alone`). Kinds are exact types: a subclass may compute
anything.

Legend: N records, R some of them, T positions, I inputs, O outputs, G groups, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dprecipe.training.engine.taps import Call, Unplanned
from dprecipe.training.engine.terms import Alone, Lookups, OfLayer, Products, Rows, Term

Made = Iterator[tuple[str, Term]]
"""Terms by the names of the parameters in the layer."""


def terms(call: Call) -> Made:
    """The terms of one call, for each of its trained parameters; none where its output led to no loss.

    Raises:
        Unplanned: the layer is called in a way that none can be given for.
    """
    if all(gradient is None for gradient in call.gradients):
        return
    known = KNOWN.get(call.kind)
    yield from _alone(call) if known is None or not _plain(call) else known(call)


def _plain(call: Call) -> bool:
    """Not one of the ways to call or to set up a layer that only the layer itself understands."""
    layer = call.layer
    if call.kind is nn.Linear:
        return True
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    # Of images and channels, each record has one row, and the records come first.
    if isinstance(layer, nn.modules.conv._ConvNd):
        return call.places.inputs[0] == (0, 1) and call.tensors()[0].dim() == layer.weight.dim()
    if isinstance(layer, (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)):
        return call.places.inputs[0] == (0, 1) and call.tensors()[0].dim() > 2
    return True


def _alone(call: Call) -> Made:
    layer = Alone(call)
    for name in call.parameters:
        yield name, OfLayer(layer, name)


def _linear(call: Call) -> Made:
    inputs, gradient = call.input().detach(), cast(Tensor, call.gradient())
    records, size = len(inputs), inputs.shape[-1]
    if call.places.inputs[0] is None or inputs.dim() < 2:
        raise Unplanned("a Linear whose features are the records")
    left_NTI = inputs.reshape(records, -1, size)
    right_NTO = gradient.reshape(records, left_NTI.shape[1], -1)
    if "weight" in call.parameters:
        yield "weight", Products(lambda part: left_NTI[part, None], right_NTO.mT[:, None], size)
    if "bias" in call.parameters:
        yield "bias", Rows(right_NTO[:, 0] if right_NTO.shape[1] == 1 else right_NTO.sum(1))


def _convolution(call: Call) -> Made:
    layer = cast(nn.modules.conv._ConvNd, call.layer)
    inputs, gradient = call.input().detach(), cast(Tensor, call.gradient())
    right_NOT = gradient.flatten(2)
    if "weight" in call.parameters:
        window, channels = layer.kernel_size, layer.in_channels // layer.groups
        # Windows are copied in runs: of a window's last side and its channels, or of a row of outputs.
        last = window[-1] * channels >= RUNS * gradient.shape[-1]

        def order(values: Tensor) -> Tensor:
            """From (O, window, C) to (O, C, window)."""
            apart = torch.unflatten(values, -1, (layer.out_channels, *window, channels))
            return apart.movedim(-1, values.dim()).flatten(values.dim() - 1)

        def left(part: slice) -> Tensor:
            return windows(inputs[part], layer, channels_last=last)

        right_NGOT = torch.unflatten(right_NOT, 1, (layer.groups, -1))
        yield "weight", Products(left, right_NGOT, channels * math.prod(window), order if last else None, not last)
    if "bias" in call.parameters:
        yield "bias", Rows(right_NOT.sum(2))


RUNS = 12
"""How many times as long runs have to be to make up for moving the channels to the end."""


def windows(inputs: Tensor, layer: nn.modules.conv._ConvNd, *, channels_last: bool) -> Tensor:
    """(R, C, …) to (R, G, T, I): what each output position was computed from."""
    padded = _padded(inputs, layer)
    if channels_last:
        padded = padded.movedim(1, -1)
    padded = padded.contiguous()
    space = slice(1, -1) if channels_last else slice(2, None)
    strides = padded.stride()[space]
    reach = [d * (k - 1) + 1 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
    counts = [(size - r) // s + 1 for size, r, s in zip(padded.shape[space], reach, layer.stride, strict=True)]
    steps = [stride * step for stride, step in zip(strides, layer.stride, strict=True)]
    within = [stride * step for stride, step in zip(strides, layer.dilation, strict=True)]
    records, groups, positions = len(padded), layer.groups, math.prod(counts)
    by_record, by_channel = padded.stride(0), padded.stride(-1 if channels_last else 1)
    channels = layer.in_channels // groups
    if channels_last:
        sizes = (records, groups, *counts, *layer.kernel_size, channels)
        view = padded.as_strided(sizes, (by_record, by_channel * channels, *steps, *within, by_channel))
        return view.reshape(records, groups, positions, -1)
    sizes = (records, groups, channels, *layer.kernel_size, *counts)
    view = padded.as_strided(sizes, (by_record, by_channel * channels, by_channel, *within, *steps))
    return view.reshape(records, groups, -1, positions).mT


def _padded(inputs: Tensor, layer: nn.modules.conv._ConvNd) -> Tensor:
    flat = [side for pair in reversed(_padding(layer)) for side in pair]
    if not any(flat):
        return inputs
    return functional.pad(inputs, flat, "constant" if layer.padding_mode == "zeros" else layer.padding_mode)


def _padding(layer: nn.modules.conv._ConvNd) -> list[tuple[int, int]]:
    if layer.padding == "same":
        totals = [d * (k - 1) for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    if isinstance(layer.padding, str):
        return [(0, 0) for _ in layer.kernel_size]
    return [(side, side) for side in layer.padding]


def _embedding(call: Call) -> Made:
    layer = cast(nn.Embedding, call.layer)
    indices, gradient = call.input(), cast(Tensor, call.gradient())
    indices = indices.reshape(len(indices), -1)
    gradient = gradient.reshape(*indices.shape, layer.embedding_dim)
    if layer.padding_idx is not None:
        gradient = gradient.masked_fill((indices == layer.padding_idx)[:, :, None], 0.0)
    yield "weight", Lookups(indices, gradient, layer.num_embeddings)


def _scale(normalised: Callable[[Any, Tensor], Tensor], dim: Callable[[Any], int]) -> Callable[[Call], Made]:
    """Layers that scale and shift what they normalised; the numbers of a scale lie in `dim` and after, or in 1."""

    def made(call: Call) -> Made:
        inputs, gradient = call.input().detach(), cast(Tensor, call.gradient())
        last = dim(call.layer)

        def summed(values: Tensor) -> Tensor:
            if last:
                return values.reshape(len(values), -1, math.prod(values.shape[-last:])).sum(1)
            return values.flatten(2).sum(2)

        if "weight" in call.parameters:
            yield "weight", Rows(summed(gradient * normalised(call.layer, inputs)))
        if "bias" in call.parameters:
            yield "bias", Rows(summed(gradient))

    return made


def _layer_norm(layer: nn.LayerNorm, inputs: Tensor) -> Tensor:
    return functional.layer_norm(inputs, layer.normalized_shape, None, None, layer.eps)


def _rms_norm(layer: nn.RMSNorm, inputs: Tensor) -> Tensor:
    return functional.rms_norm(inputs, layer.normalized_shape, None, layer.eps)


def _group_norm(layer: nn.GroupNorm, inputs: Tensor) -> Tensor:
    return functional.group_norm(inputs, layer.num_groups, None, None, layer.eps)


def _instance_norm(layer: nn.modules.instancenorm._InstanceNorm, inputs: Tensor) -> Tensor:
    return functional.instance_norm(inputs, eps=layer.eps)


def _shape_dims(layer: nn.LayerNorm | nn.RMSNorm) -> int:
    return len(layer.normalized_shape)


def _by_channel(_: nn.Module) -> int:
    return 0


KNOWN: dict[type[nn.Module], Callable[[Call], Made]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _scale(_layer_norm, _shape_dims),
    nn.RMSNorm: _scale(_rms_norm, _shape_dims),
    nn.GroupNorm: _scale(_group_norm, _by_channel),
    nn.InstanceNorm1d: _scale(_instance_norm, _by_channel),
    nn.InstanceNorm2d: _scale(_instance_norm, _by_channel),
    nn.InstanceNorm3d: _scale(_instance_norm, _by_channel),
}
