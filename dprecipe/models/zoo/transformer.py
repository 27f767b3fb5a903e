"""A small transformer for text: tokens to logits. It sees each record by itself, and has no dropout: the noise of
private training is more than enough of it.

Axes: B records, L places of a record, W width, H heads.
Source: A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017; normalisation before each half of a layer as in
R. Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from dprecipe.models.schema import Transformer

PADDING = 0
GROWTH = 4
"""Factor by which a layer is wider inside."""


@final
class TextTransformer(nn.Module):
    """Tokens (B, L), whole numbers as float32, to logits (B, classes).

    What is none of 0 … vocabulary - 1 is read as the nearest one; a record that is not finite has outputs of NaN. The
    first place counts even where it is padding, so that an empty text has an output.
    """

    def __init__(self, spec: Transformer, length: int, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, spec.width, padding_idx=PADDING)
        self.places = nn.Embedding(length, spec.width)
        self.layers = nn.Sequential(*(Layer(spec.width, spec.heads) for _ in range(spec.layers)))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, classes)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)
        with torch.no_grad():
            self.tokens.weight[PADDING].zero_()

    def forward(self, features: Tensor) -> Tensor:
        tokens_BL = to_tokens(features, self.tokens.num_embeddings)
        place_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        counts_BL = padding_mask(tokens_BL)
        hidden_BLW = self.tokens(tokens_BL) + self.places(place_L)
        for layer in self.layers:
            hidden_BLW = layer(hidden_BLW, counts_BL)
        weights_BL1 = counts_BL.to(hidden_BLW)[..., None]
        mean_BW = (self.norm(hidden_BLW) * weights_BL1).sum(1) / weights_BL1.sum(1)
        return mark_non_finite(self.head(mean_BW), features)


@final
class Layer(nn.Module):
    """Attention among the places of a record, then two linear layers at each place."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.mix_in = nn.Linear(width, 3 * width)
        self.mix_out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, GROWTH * width)
        self.down = nn.Linear(GROWTH * width, width)

    def forward(self, x: Tensor, counts_BL: Tensor) -> Tensor:
        """Maps (B, L, W) to (B, L, W); only places that count are looked at."""
        queries, keys, values = (self._by_head(part) for part in self.mix_in(self.norm_1(x)).chunk(3, dim=-1))
        # Written out: torch's own has no batching rule on a CPU, which gradients of single records need.
        scores_BHLL = queries @ keys.mT / math.sqrt(queries.shape[-1])
        mixed = scores_BHLL.masked_fill(~counts_BL[:, None, None, :], -math.inf).softmax(-1) @ values
        x = x + self.mix_out(mixed.transpose(1, 2).flatten(2))
        added: Tensor = x + self.down(functional.gelu(self.up(self.norm_2(x))))
        return added

    def _by_head(self, x: Tensor) -> Tensor:
        """Reshapes (B, L, W) to (B, H, L, W / H)."""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)


def to_tokens(features: Tensor, vocabulary: int) -> Tensor:
    """Turns any numbers into tokens, int64 from 0 to vocabulary - 1. What is not finite has to be marked afterwards."""
    return features.nan_to_num(PADDING).clamp(0, vocabulary - 1).long()


def mark_non_finite(logits: Tensor, features: Tensor) -> Tensor:
    """Logits of records that are not finite are NaN: no table shows what was looked up in it."""
    return logits + (0.0 * features).sum(1, keepdim=True)


def padding_mask(tokens_BL: Tensor) -> Tensor:
    """Marks the places that count: all that are not padding, and the first."""
    return (tokens_BL != PADDING) | (torch.arange(tokens_BL.shape[1], device=tokens_BL.device) == 0)
