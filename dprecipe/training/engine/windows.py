"""Rows of a convolution's gradients, from the inputs of each output position.

Legend: N records, R some of them, T positions, I inputs, O outputs, G groups, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from dprecipe.training.engine.sizes import one_size
from dprecipe.training.engine.standardised import Standardisation, SumStandardisation


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
        self.standardised = SumStandardisation(weight, self._unordered) if standard and on_sum else None
        self._row_standardised = Standardisation(weight, self._unordered) if standard and not on_sum else None
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

    def _unordered(self, weight: Tensor) -> Tensor:
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
