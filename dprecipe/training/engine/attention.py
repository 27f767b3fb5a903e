"""Self-attention between its two products, as `nn.MultiheadAttention` computes it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ATTENTION = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights")


def attention(
    layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Returns (N, H, L, E) mixed values, and the weights as `nn.MultiheadAttention` returns them."""
    mask = _mask(arguments.get("attn_mask"), query)
    if mask is not None and mask.dim() == 3:
        mask = torch.unflatten(mask, 0, (-1, layer.num_heads))
    padding = _mask(arguments.get("key_padding_mask"), query)
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
    dropout = layer.dropout if layer.training else 0.0
    if not arguments.get("need_weights", True):
        return functional.scaled_dot_product_attention(query, key, value, mask, dropout), None
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    weights = functional.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
    return weights @ value, weights.mean(1) if arguments.get("average_attn_weights", True) else weights


def _mask(mask: Tensor | None, like: Tensor) -> Tensor | None:
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -torch.inf)
