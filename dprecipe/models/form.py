"""The form of a record, as far as it is known without reading a value: its shape, whether its numbers are integers, and
the number of tokens.

Axes: N records, K fields, L places of a record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

DISTANT, SHIFT = 3.0, 1.0
"""Scale and mean of the records that replace others."""
UNLEARNED = -100.0
"""Value that stands for a label that is not learned."""


@final
@dataclass(frozen=True, slots=True)
class Form:
    """Form of a model's records.

    `shape`: of one record's features. `fields`: the names of arrays that are stacked along its first axis.
    `tokens`: None where features are quantities. Whole numbers are tokens, 0 … tokens - 1, with 0 for padding: their
    count for each field (for all of a record, where it has no fields); 0 where it is unknown.
    """

    shape: tuple[int, ...]
    tokens: tuple[int, ...] | None = None
    fields: tuple[str, ...] = ()
    sequences: bool = False
    """Records are (2, L): tokens, and at each place the token that is learned there, or `UNLEARNED`."""

    @staticmethod
    def of(shape: Sequence[int]) -> Form:
        """Returns the form of records that are quantities."""
        return Form(tuple(shape))

    def draw(self, count: int, generator: torch.Generator, *, distant: bool = False) -> Tensor:
        """Draws synthetic records (count, *shape) float32, one after the other. `distant`: far from the usual ones."""
        if self.tokens is None:
            draws = torch.randn((count, *self.shape), generator=generator)
            return DISTANT * draws + SHIFT if distant else draws
        if self.sequences:
            tokens_NL = _tokens((count, self.shape[1]), self.tokens[0], generator)
            return torch.stack([tokens_NL, _learned(tokens_NL, generator)], 1)
        if not self.fields:
            return _tokens((count, *self.shape), self.tokens[0], generator)
        shape, result = (count, *self.shape[1:]), []
        for name, tokens in zip(self.fields, self.tokens, strict=True):
            result.append(_mask(shape, generator) if "mask" in name else _tokens(shape, tokens, generator))
        return torch.stack(result, 1)

    def limited(self, values: Tensor) -> Tensor:
        """Returns records (N, *shape) in which what is no token becomes the nearest one, and what is not finite 1."""
        values = values.nan_to_num(1.0, 1.0, 1.0)
        if not self.tokens or not any(self.tokens):
            return values
        if self.sequences:
            lowest = torch.tensor([[0.0], [UNLEARNED]]).to(values)
            return values.maximum(lowest).clamp(max=float(self.tokens[0] - 1))
        limits = torch.tensor([float(tokens - 1) if tokens else math.inf for tokens in self.tokens])
        limits = limits.to(values)
        if self.fields and values.dim() == len(self.shape) + 1:
            limits = limits.view(-1, *[1] * (len(self.shape) - 1))
        return values.clamp(min=0.0).minimum(limits if self.fields else limits[0])


def _tokens(shape: tuple[int, ...], tokens: int, generator: torch.Generator) -> Tensor:
    """Draws tokens, never padding alone: records of nothing but padding are not usual."""
    return torch.randint(1, max(2, tokens), shape, generator=generator) * _mask(shape, generator)


def _learned(tokens_NL: Tensor, generator: torch.Generator) -> Tensor:
    """Returns the tokens behind a prompt, which every second record has; neither it nor padding is learned."""
    length = tokens_NL.shape[1]
    prompts_N1 = torch.randint(0, max(1, length // 2), (len(tokens_NL), 1), generator=generator)
    prompts_N1[1::2] = 0
    is_learned = (torch.arange(length) >= prompts_N1) & (tokens_NL > 0)
    return torch.where(is_learned, tokens_NL, UNLEARNED)


def _mask(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws masks: 1 at the first places, 0 behind them; at least one place counts, and in every second record all
    do.
    """
    if len(shape) < 2:
        return torch.ones(shape)
    length = shape[-1]
    counts = torch.randint(1, length + 1, (*shape[:-1], 1), generator=generator)
    counts[::2] = length
    return (torch.arange(length) < counts).float()
