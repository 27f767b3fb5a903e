"""Tokens from a decoder, one after another: drawn by a seed, with a temperature, from the likeliest tokens alone.

Source of `top_p`: A. Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020.

Legend: B continuations, T new tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dprecipe.faults import DataFault, UsageFault

MAX_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Sampling:
    """Choice of the next token."""

    max_tokens: int
    """New tokens of one continuation."""
    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Only the likeliest tokens are drawn, as few as have this share of the probability together."""

    def __post_init__(self) -> None:
        """Raises `UsageFault` where a number is out of its range."""
        if not 1 <= self.max_tokens <= MAX_TOKENS:
            raise UsageFault(f"{self.max_tokens} tokens can't be generated", f"choose 1 to {MAX_TOKENS:,}")
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise UsageFault(f"the temperature is {self.temperature!r}", "choose 0 (the likeliest token) to 100")
        if not 0 < self.top_p <= 1:
            raise UsageFault(f"top-p is {self.top_p!r}", "choose a number above 0, and at most 1 (every token)")


class Decoder(Protocol):
    """A network that reads tokens one after another."""

    def __call__(self, tokens_BT: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Reads `tokens_BT` behind those in `cache` (None: behind none); the logits (B, V) of the token that follows
        the last, and the cache with all that was read.
        """


@dataclass(frozen=True, slots=True)
class Continuation:
    """Text generated after a prompt."""

    tokens: tuple[int, ...]
    """Tokens of the text, without the one that ended it."""
    has_ended: bool
    """True if the text ended by itself, and not because it reached the limit."""


def continue_tokens(
    decoder: Decoder,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling,
    generator: torch.Generator,
    end: int | None = None,
    banned: Collection[int] = (),
) -> list[Continuation]:
    """Generates `count` continuations of one prompt. `end`: the token that ends one; `banned`: tokens that are never
    generated.

    Guarantees: they are a function of the decoder, the arguments and the state of `generator` on one machine.

    Raises:
        UsageFault: the prompt is empty.
        DataFault: the decoder gives numbers that are not finite.
    """
    if not prompt:
        raise UsageFault("the prompt holds no token to go on from", "give a text with --prompt")
    forbidden = torch.tensor(sorted(set(banned) - {end}), dtype=torch.int64)
    tokens_BT = torch.tensor([list(prompt)] * count, dtype=torch.int64).reshape(count, len(prompt))
    written: list[list[int]] = [[] for _ in range(count)]
    ended = [False] * count
    cache: Any = None
    with torch.no_grad():
        for _ in range(sampling.max_tokens):
            logits_BV, cache = decoder(tokens_BT, cache)
            chosen_B = choose_tokens(logits_BV.index_fill(1, forbidden, -math.inf), sampling, generator)
            for row, token in enumerate(chosen_B.tolist()):
                ended[row] = ended[row] or token == end
                if not ended[row]:
                    written[row].append(token)
            if all(ended):
                break
            tokens_BT = chosen_B[:, None]
    return [Continuation(tuple(row), done) for row, done in zip(written, ended, strict=True)]


def choose_tokens(logits_BV: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Returns one token for each row of logits, (B,) int64. A logit of -inf is never chosen.

    Raises:
        DataFault: a logit is NaN or +inf, or all of a row are -inf.
    """
    logits_BV = logits_BV.double()
    top_B1 = logits_BV.max(dim=1, keepdim=True).values
    if not bool(torch.isfinite(top_B1).all()):
        raise DataFault("the model's outputs are not finite numbers", "train it again: its training has diverged")
    if sampling.temperature == 0:
        return logits_BV.argmax(dim=1)
    probabilities_BV = torch.softmax((logits_BV - top_B1) / sampling.temperature, dim=1)
    if sampling.top_p < 1:
        sorted_BV, order_BV = probabilities_BV.sort(dim=1, descending=True, stable=True)
        before_BV = sorted_BV.cumsum(dim=1) - sorted_BV  # the share of those that are likelier
        kept_BV = sorted_BV.masked_fill(before_BV >= sampling.top_p, 0.0)
        probabilities_BV = torch.zeros_like(sorted_BV).scatter_(1, order_BV, kept_BV)
    return torch.multinomial(probabilities_BV, 1, generator=generator)[:, 0]
