"""The gradient terms of each kind of layer.

A layer that is not listed here is differentiated by `torch.func` (`terms.SingleRecordTerm`). Kinds are exact types: a
subclass may compute anything.

Rows of a convolution's gradients are made from the inputs of each output position.

Legend: N records, R some of them, T positions, I inputs, O outputs, G groups, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from dprecipe.models.zoo.layers import NextTokens, OffsetRMSNorm, StandardisedConv2d, TransposedLinear, WideRMSNorm
from dprecipe.training.engine.sizes import one_size
from dprecipe.training.engine.standardised import BatchWeights, Standardisation, SumStandardisation
from dprecipe.training.engine.taps import Call, Unplanned
from dprecipe.training.engine.terms import Lookups, OfLayer, Products, Rows, SingleRecordTerm, Term, TokenErrors

NamedTerms = Iterator[tuple[str, Term]]
"""Terms by the names of the parameters in the layer."""


def layer_terms(call: Call) -> NamedTerms:
    """Yields the terms of one call, for each of its trained parameters; none if its output does not affect the loss.

    Raises:
        Unplanned: the layer is called in a way that has no terms.
    """
    if all(gradient is None for gradient in call.gradients):
        return
    known = LAYER_TERMS.get(call.kind)
    yield from _isolated(call) if known is None or not _plain(call) else known(call)


def _plain(call: Call) -> bool:
    """Returns True if this module implements the layer's settings and this call."""
    layer = call.layer
    if call.kind in (nn.Linear, TransposedLinear):
        return True
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    if isinstance(layer, StandardisedConv2d) and layer.groups > 1:
        return False
    # In images and channels, the records come first.
    place = call.places.inputs[0]
    if isinstance(layer, nn.modules.conv._ConvNd):
        return place is not None and place[0] == 0 and call.tensors()[0].dim() == layer.weight.dim()
    if isinstance(layer, (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)):
        return place is not None and place[0] == 0 and call.tensors()[0].dim() > 2
    return True


def _isolated(call: Call) -> NamedTerms:
    layer = SingleRecordTerm(call)
    for name in call.parameters:
        yield name, OfLayer(layer, name)


def _linear(call: Call) -> NamedTerms:
    inputs, gradient = call.input().detach(), cast(Tensor, call.gradient())
    records, size = len(inputs), inputs.shape[-1]
    if call.places.inputs[0] is None or inputs.dim() < 2:
        raise Unplanned("a Linear whose features are the records")
    left_NTI = inputs.reshape(records, -1, size)
    right_NTO = gradient.reshape(records, left_NTI.shape[1], -1)
    bias = None
    if "bias" in call.parameters:
        bias = Rows(right_NTO[:, 0] if right_NTO.shape[1] == 1 else right_NTO.sum(1))
        yield "bias", bias
    if "weight" in call.parameters and call.kind is TransposedLinear:
        yield "weight", Products(lambda part: right_NTO[part, None], left_NTI.mT[:, None], right_NTO.shape[2])
    elif "weight" in call.parameters:
        yield "weight", Products(lambda part: left_NTI[part, None], right_NTO.mT[:, None], size, bias=bias)


def _convolution(call: Call) -> NamedTerms:
    layer = cast(nn.modules.conv._ConvNd, call.layer)
    images, gradient, each = _rows_of(call)
    right_NOT = by_record(gradient.flatten(2), each).movedim(1, 2).flatten(2) if each > 1 else gradient.flatten(2)
    if "weight" in call.parameters:
        yield "weight", _of_windows(layer, images, gradient.shape[2:], right_NOT, each, call.weights)
    if "bias" in call.parameters:
        yield "bias", Rows(right_NOT.sum(2))


def _rows_of(call: Call) -> tuple[Tensor, Tensor, int]:
    """Returns input, gradient, and the number of consecutive rows of both that belong to each record."""
    place = call.places.inputs[0]
    inputs, gradient = call.input().detach(), cast(Tensor, call.gradient())
    if place is None or place[1] == 1:
        return inputs, gradient, 1
    return inputs.flatten(0, 1), gradient.flatten(0, 1), place[1]


def _of_windows(
    layer: nn.modules.conv._ConvNd,
    images: Tensor,
    counts: Sequence[int],
    right_NOT: Tensor,
    each: int,
    weights: BatchWeights | None,
) -> Products:
    window, channels = layer.kernel_size, layer.in_channels // layer.groups

    def order(values: Tensor) -> Tensor:
        """Reorders (O, window, C) to (O, C, window)."""
        split = torch.unflatten(values, -1, (layer.out_channels, *window, channels))
        return split.movedim(-1, values.dim()).flatten(values.dim() - 1)

    def left(part: slice) -> Tensor:
        result = layer_windows(images[rows_at(part, each)], layer)
        return result if each == 1 else by_record(result, each).movedim(1, 2).flatten(2, 3)

    right_NGOT = torch.unflatten(right_NOT, 1, (layer.groups, -1))
    slabs, paired = None, layer.groups == 1
    standard = isinstance(layer, StandardisedConv2d)
    by_run = layer.out_channels * right_NOT.shape[2] * window[-1] * channels
    if standard or (layer.groups == 1 and by_run >= MIN_MULTIPLICATIONS):
        slabs, paired = WindowRows(layer, images, counts, right_NOT, each, weights, standard=standard), not standard
    return Products(left, right_NGOT, channels * math.prod(window), order, slabs, paired)


MIN_MULTIPLICATIONS = 1 << 18
"""A product is computed by a call of its own only if it has at least this many multiplications."""


def _embedding(call: Call) -> NamedTerms:
    layer = cast(nn.Embedding, call.layer)
    indices, gradient = call.input(), cast(Tensor, call.gradient())
    indices = indices.reshape(len(indices), -1)
    gradient = gradient.reshape(*indices.shape, layer.embedding_dim)
    if layer.padding_idx is not None:
        gradient = gradient.masked_fill((indices == layer.padding_idx)[:, :, None], 0.0)
    yield "weight", Lookups(indices, gradient, layer.num_embeddings)


def _next_tokens(call: Call) -> NamedTerms:
    labels = call.tensors()[1]
    if call.places.inputs[:2] != ((0, 1), (0, 1)):
        raise Unplanned("a head for tokens that does not get one row for each record")
    weight = call.parameters["weight"].detach()
    states = call.input().detach()[:, :-1]
    yield "weight", TokenErrors(states, labels[:, 1:], cast(Tensor, call.gradient()), weight, call.reduced)


def _scale(normalised: Callable[[Any, Tensor], Tensor], dim: Callable[[Any], int]) -> Callable[[Call], NamedTerms]:
    """Makes terms of layers that scale and shift normalised values; `dim` is the number of trailing dimensions that the
    scale
    has, or 0 if it has one number per channel."""

    def terms(call: Call) -> NamedTerms:
        last = dim(call.layer)
        inputs, gradient, each = (call.input().detach(), cast(Tensor, call.gradient()), 1) if last else _rows_of(call)

        def summed(values: Tensor) -> Tensor:
            if last:
                return values.reshape(len(values), -1, math.prod(values.shape[-last:])).sum(1)
            by_row = values.flatten(2).sum(2)
            return by_row if each == 1 else by_record(by_row, each).sum(1)

        if "weight" in call.parameters:
            yield "weight", Rows(summed(gradient * normalised(call.layer, inputs)))
        if "bias" in call.parameters:
            yield "bias", Rows(summed(gradient))

    return terms


def _layer_norm(layer: nn.LayerNorm, inputs: Tensor) -> Tensor:
    return functional.layer_norm(inputs, layer.normalized_shape, None, None, layer.eps)


def _rms_norm(layer: nn.RMSNorm | WideRMSNorm | OffsetRMSNorm, inputs: Tensor) -> Tensor:
    return functional.rms_norm(inputs, layer.normalized_shape, None, layer.eps)


def _group_norm(layer: nn.GroupNorm, inputs: Tensor) -> Tensor:
    return functional.group_norm(inputs, layer.num_groups, None, None, layer.eps)


def _instance_norm(layer: nn.modules.instancenorm._InstanceNorm, inputs: Tensor) -> Tensor:
    return functional.instance_norm(inputs, eps=layer.eps)


def _shape_dims(layer: nn.LayerNorm | nn.RMSNorm | WideRMSNorm | OffsetRMSNorm) -> int:
    return len(layer.normalized_shape)


def _by_channel(_: nn.Module) -> int:
    return 0


LAYER_TERMS: dict[type[nn.Module], Callable[[Call], NamedTerms]] = {
    nn.Linear: _linear,
    TransposedLinear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    StandardisedConv2d: _convolution,
    nn.Embedding: _embedding,
    NextTokens: _next_tokens,
    nn.LayerNorm: _scale(_layer_norm, _shape_dims),
    nn.RMSNorm: _scale(_rms_norm, _shape_dims),
    WideRMSNorm: _scale(_rms_norm, _shape_dims),
    OffsetRMSNorm: _scale(_rms_norm, _shape_dims),
    nn.GroupNorm: _scale(_group_norm, _by_channel),
    nn.InstanceNorm1d: _scale(_instance_norm, _by_channel),
    nn.InstanceNorm2d: _scale(_instance_norm, _by_channel),
    nn.InstanceNorm3d: _scale(_instance_norm, _by_channel),
}


def by_record(rows: Tensor, each: int) -> Tensor:
    """Turns (N·each, …) into (N, each, …): the rows of each record."""
    return torch.unflatten(rows, 0, (-1, each))


def rows_at(part: slice, each: int) -> slice:
    """Returns the slice of the rows of these records, where each record has `each` rows."""
    return slice(part.start * each, part.stop * each)


@final
class WindowRows:
    """The rows of a convolution without groups, from one product for each position in the window's leading sides.

    Only windows along the last side are copied: the others are views of that copy. Where another side has a stride,
    its positions are sorted by their phase first.
    """

    def __init__(
        self,
        layer: nn.modules.conv._ConvNd,
        images: Tensor,
        counts: Sequence[int],
        right_NOT: Tensor,
        each: int,
        weights: BatchWeights | None,
        *,
        standard: bool = False,
    ) -> None:
        """`counts`: outputs along each side; `each`: images of a record; `standard`: weights are standardised."""
        self._layer, self._images, self._counts = layer, images, tuple(counts)
        self._right_NOT, self._each = right_NOT, each
        self._padding = _padding(layer)
        sides = [size + sum(pair) for size, pair in zip(images.shape[2:], self._padding, strict=True)]
        self._run = layer.kernel_size[-1] * layer.in_channels
        weight, on_sum = layer.weight.detach(), one_size(images.device)
        self.standardised: SumStandardisation | None = None
        if standard and on_sum:
            self.standardised = (weights or BatchWeights()).pull(layer, lambda: SumStandardisation(weight, _unordered))
        self._row_standardised = Standardisation(weight, _unordered) if standard and not on_sum else None
        result = math.prod(sides) * layer.in_channels + math.prod(sides[:-1]) * self._counts[-1] * self._run
        self.row_cost = each * result

    def rows(self, part: slice, out_RP: Tensor) -> None:
        layer, right_ROT = self._layer, self._right_NOT[part]
        if self.standardised is not None:
            right_ROT = self.standardised.scaled(right_ROT)
        places = list(product(*map(range, layer.kernel_size[:-1])))
        slabs = out_RP.view(len(right_ROT), len(places), layer.out_channels, self._run)
        by_phase = self._along_last(self._images[rows_at(part, self._each)])
        for number, place in enumerate(places):
            reach = [at * dilation for at, dilation in zip(place, layer.dilation, strict=False)]
            runs = by_phase[tuple(at % step for at, step in zip(reach, layer.stride, strict=False))]
            for dim, (at, step) in enumerate(zip(reach, layer.stride, strict=False)):
                runs = runs.narrow(1 + dim, at // step, self._counts[dim])
            torch.bmm(right_ROT, runs.reshape(len(right_ROT), -1, self._run), out=slabs[:, number])
        if self._row_standardised is not None:
            self._row_standardised.shorten(slabs)

    def _along_last(self, images: Tensor) -> dict[tuple[int, ...], Tensor]:
        """Returns (images, …, outputs along the last side, window along it × C), for each phase of the other sides."""
        layer = self._layer
        padded = _channels_last(images, layer, self._padding)
        step, within = padded.stride(-2) * layer.stride[-1], padded.stride(-2) * layer.dilation[-1]
        outer = list(zip(layer.stride[:-1], layer.kernel_size[:-1], layer.dilation[:-1], strict=True))
        result = {}
        for phase in product(*(range(min(s, (k - 1) * d + 1)) for s, k, d in outer)):
            starts = [slice(at, None, s) for at, (s, _, _) in zip(phase, outer, strict=True)]
            rows = padded[(slice(None), *starts)]
            sizes = (*rows.shape[:-2], self._counts[-1], layer.kernel_size[-1], layer.in_channels)
            runs = rows.as_strided(sizes, (*rows.stride()[:-2], step, within, 1), rows.storage_offset())
            result[phase] = runs.contiguous().flatten(-2)
        return result

    def ordered(self, values: Tensor) -> Tensor:
        """Turns (outer window, O, last side of the window, C) into (O, C, window), and to the weights before they are
        standardised, unless rows are."""
        layer = self._layer
        *outer, last = layer.kernel_size
        lead = values.dim() - 1
        split = torch.unflatten(values, -1, (math.prod(outer), layer.out_channels, last, layer.in_channels))
        by_parameter = split.permute(*range(lead), lead + 1, lead + 3, lead, lead + 2)
        result = by_parameter.flatten(lead)
        return result if self.standardised is None else self.standardised.pulled_back(result)


def _unordered(weight: Tensor) -> Tensor:
    """From the parameter to (outer window, O, last side of the window × C)."""
    split = weight.flatten(2, -2) if weight.dim() > 3 else weight[:, :, None]
    return split.permute(2, 0, 3, 1).flatten(2)


def _channels_last(inputs: Tensor, layer: nn.modules.conv._ConvNd, padding: list[tuple[int, int]]) -> Tensor:
    """Turns (R, C, …) into (R, …, C) in memory, padded."""
    if layer.padding_mode != "zeros":
        return _padded(inputs, layer).movedim(1, -1).contiguous()
    inputs = inputs.movedim(1, -1)
    if not any(map(any, padding)):
        return inputs.contiguous()
    sides = [size + sum(pair) for size, pair in zip(inputs.shape[1:-1], padding, strict=True)]
    padded = inputs.new_zeros(len(inputs), *sides, inputs.shape[-1])
    inner = padded
    for dim, (size, pair) in enumerate(zip(inputs.shape[1:-1], padding, strict=True)):
        inner = inner.narrow(1 + dim, pair[0], size)
    inner.copy_(inputs)
    return padded


def layer_windows(inputs: Tensor, layer: nn.modules.conv._ConvNd) -> Tensor:
    """Turns (R, C, …) into (R, G, T, I): the inputs of each output position."""
    padded = _channels_last(inputs, layer, _padding(layer))
    space = slice(1, -1)
    strides = padded.stride()[space]
    reach = [d * (k - 1) + 1 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
    counts = [(size - r) // s + 1 for size, r, s in zip(padded.shape[space], reach, layer.stride, strict=True)]
    steps = [stride * step for stride, step in zip(strides, layer.stride, strict=True)]
    within = [stride * step for stride, step in zip(strides, layer.dilation, strict=True)]
    channels = layer.in_channels // layer.groups
    sizes = (len(padded), layer.groups, *counts, *layer.kernel_size, channels)
    view = padded.as_strided(sizes, (padded.stride(0), channels, *steps, *within, 1))
    return view.reshape(len(padded), layer.groups, math.prod(counts), -1)


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
