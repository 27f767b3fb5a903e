"""A released language model that writes: continuations of a prompt, in the form in which its training texts were.

What it writes is post-processing of what was released: it costs nothing more, however much of it there is. A text may
still resemble public text that the base model has read, which no certificate is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from dprecipe.data.facts import sequences_step
from dprecipe.data.schema import ASSISTANT, Sequences
from dprecipe.data.tokens import SequenceTokens
from dprecipe.faults import DataFault, UsageFault
from dprecipe.library_warnings import ignoring_warnings
from dprecipe.models.decoding import Continuation, Sampling, continue_tokens
from dprecipe.models.file import ModelFile
from dprecipe.models.zoo.causal_lm import CausalLanguageModel

USER = "user"
BATCH = 64
"""Texts that are written at once."""
MAX_COUNT = 10_000_000


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A text that the model has written behind its prompt."""

    text: str
    tokens: int
    has_ended: bool
    """True if the text ended by itself, and was not cut."""


@final
class LanguageModel:
    """A released decoder and its tokeniser; in evaluation mode."""

    def __init__(self, module: CausalLanguageModel, file: ModelFile, step: Sequences, tokens: SequenceTokens) -> None:
        """`file`: what `model.json` says; `step`: how it makes sequences of texts; `tokens`: of its tokeniser."""
        self.module = module.eval().requires_grad_(False)
        self.file, self.step, self.tokens = file, step, tokens

    @property
    def places(self) -> int:
        """Tokens that it can read: prompt and continuation together."""
        return self.module.places

    @ignoring_warnings()
    def generate(
        self,
        prompt: str = "",
        count: int = 1,
        *,
        max_tokens: int | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[str]:
        """Returns `count` texts behind a prompt: of a chat the assistant's answers to this message, of prompts and
        completions the completion, else what goes on from it. `max_tokens` of each: what is left of the length of
        training when None.

        Guarantees: the same release, arguments and machine give the same texts.

        Raises:
            UsageFault: no token fits after the prompt, there is nothing to start from, or a number is out of
                its range.
            DataFault: the tokeniser has no token for a part of the prompt.
        """
        if not 1 <= count <= MAX_COUNT:
            raise UsageFault(f"{count} texts can't be generated", f"choose 1 to {MAX_COUNT:,}")
        start = self.begin(prompt)
        sampling = Sampling(self.count_left(start) if max_tokens is None else max_tokens, temperature, top_p)
        generator = torch.Generator().manual_seed(check_seed(seed))
        texts: list[str] = []
        while len(texts) < count:
            texts += [one.text for one in self.write(start, min(BATCH, count - len(texts)), sampling, generator)]
        return texts

    def begin(self, prompt: str) -> tuple[int, ...]:
        """Returns the tokens that a continuation of `prompt` goes on from.

        Raises:
            UsageFault: they fill all places, or there are none.
            DataFault: the tokeniser has no token for a part of the prompt.
        """
        before, encoded = self.tokens.before, tuple(self.tokens.encode([prompt])[0]) if prompt else ()
        if self.step.chat is not None:
            if USER not in self.tokens.turns or ASSISTANT not in self.tokens.turns:
                raise UsageFault(f"the recipe's roles have no {USER!r} or no {ASSISTANT!r}", "use the tokens in Python")
            start, end = self.tokens.turns[USER]
            encoded = (*start, *encoded, *end, *self.tokens.turns[ASSISTANT][0])
        # Behind the end of a text another one begins: what a text starts from where nothing else stands before it.
        result = (*before, *encoded) or self.tokens.after[:1]
        if not result:
            raise UsageFault("the model's texts have no token before the first, to start from", "give a text: --prompt")
        if len(result) >= self.places:
            raise UsageFault(
                f"the prompt has {len(result)} tokens, and the model reads {self.places}", "give a shorter prompt"
            )
        return result

    def count_left(self, start: Sequence[int]) -> int:
        """Returns new tokens up to the length of training; one at least."""
        return max(1, min(self.places, self.step.max_length) - len(start))

    def write(
        self, start: Sequence[int], count: int, sampling: Sampling, generator: torch.Generator
    ) -> list[WrittenText]:
        """Returns `count` continuations of tokens, at most as long as the places allow.

        Raises:
            DataFault: the weights give numbers that are not finite.
        """
        length = min(sampling.max_tokens, self.places - len(start))
        fitting = Sampling(length, sampling.temperature, sampling.top_p)
        end = self.tokens.after[0] if self.tokens.after else None
        vocabulary = int(self.module.vocabulary)
        # Padding may be a token that texts are made of: places behind the end are ignored, whatever stands there.
        banned = {*range(self.tokens.count, vocabulary), *(self.tokens.special & {self.step.tokenizer.padding})}
        done = continue_tokens(self._step, start, count, fitting, generator, end, banned)
        return [self._read(start, one) for one in done]

    def _step(self, tokens_BT: Tensor, cache: Any) -> tuple[Tensor, Any]:
        # Drawn on the CPU, wherever the module is: the same seed draws the same numbers.
        logits_BV, cache = self.module.next_logits(tokens_BT.to(self.module.embedding.weight.device), cache)
        return logits_BV.cpu(), cache

    def _read(self, start: Sequence[int], one: Continuation) -> WrittenText:
        # A tokeniser may drop a blank at the beginning: so the whole is read, and its beginning taken off.
        whole, prefix = self.tokens.decode([*start, *one.tokens]), self.tokens.decode(start)
        text = whole[len(prefix) :] if whole.startswith(prefix) else self.tokens.decode(one.tokens)
        turn_end = (self.step.roles or {}).get(ASSISTANT, ("", ""))[1] if self.step.chat is not None else ""
        if turn_end and turn_end in text:
            return WrittenText(text[: text.index(turn_end)], len(one.tokens), True)
        return WrittenText(text, len(one.tokens), one.has_ended)


def check_seed(seed: int) -> int:
    """Returns the seed itself.

    Raises:
        UsageFault: it is no whole number of 0 to 2^63 - 1.
    """
    if not 0 <= seed < 1 << 63:
        raise UsageFault(f"the seed is {seed}", "choose 0 to 2^63 - 1")
    return seed


def find_sequences(file: ModelFile) -> Sequences:
    """Returns the step that makes the sequences of a language model.

    Raises:
        DataFault: it is another kind of model.
    """
    step = sequences_step(file.preprocess)
    if step is None:
        raise DataFault(
            "the released model predicts labels, and writes no text", "use dprecipe predict, or name a causal_lm"
        )
    return step
