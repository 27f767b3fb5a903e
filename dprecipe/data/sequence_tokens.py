"""A public tokeniser for sequences: segments of a text to tokens, each by itself, and what stands around them.

A segment is the text of a record, a prompt, a completion, or a turn of a conversation. What a record spells never
becomes a special token (`<|endoftext|>` in it is read as letters): only the recipe's own constants do. So no record can
end its sequence early. What stands around a role's turns can be spelled in a record unless it is a special token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from dprecipe.data.files import locate_file
from dprecipe.data.schema import Sequences
from dprecipe.data.tokens import decode_tokens, encode_texts, read_tokenizer
from dprecipe.faults import DataFault

PROBES = ("a", "e", "A", "0", ".")
"""Texts for at least one of which a tokeniser has a token."""


@final
class SequenceTokens:
    """The tokens of segments, without special ones; `before` and `after` are those around a whole text."""

    def __init__(self, step: Sequences, tokenizer: Any, content: bytes, name: str) -> None:
        """`tokenizer`: of the library, which neither cuts nor pads. `content`: that of its file, `name`: its name.

        Raises:
            DataFault: the tokens that it adds to a text are not those that are declared, or a text can spell a special
                one.
        """
        self._tokenizer, self._name = tokenizer, name
        self.content = content
        first, added = _find_added(tokenizer, step.vocabulary, name)
        self.before = first if step.begin is None else (step.begin,)
        if first not in ((), self.before):
            raise DataFault(
                f"{name}: puts token {', '.join(map(str, first))} before each text, and `begin` is {step.begin}",
                f"write begin: {first[0]}" if len(first) == 1 else "remove `begin`",
            )
        self.after = added if step.end is None else (step.end,)
        if added not in ((), self.after):
            raise DataFault(
                f"{name}: puts token {', '.join(map(str, added))} behind each text, and `end` is {step.end}",
                f"write end: {added[0]}" if len(added) == 1 else "remove `end`",
            )
        if len(self.before) + len(self.after) >= step.max_length:
            raise DataFault(
                f"{name}: adds {len(self.before) + len(self.after)} tokens to each text, and max_length is "
                f"{step.max_length}",
                f"write max_length: {len(self.before) + len(self.after) + 1} or more",
            )
        roles = step.roles or {}
        self.turns = {role: (self._constant(start), self._constant(end)) for role, (start, end) in roles.items()}
        """The tokens before and after each turn, by role."""
        tokenizer.encode_special_tokens = True
        _check_unspelled(tokenizer, (*self.before, *self.after), name)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokens of each segment; special ones never.

        Raises:
            DataFault: the tokeniser has no token for a part of a text.
        """
        encodings = encode_texts(self._tokenizer, list(texts), self._name, special=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without the special ones among them. Raises as `decode_tokens`."""
        return decode_tokens(self._tokenizer, tokens, self._name)

    @property
    def count(self) -> int:
        """Number of tokens that the tokeniser knows: the vocabulary of a model may be larger."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def special(self) -> frozenset[int]:
        """The tokens that no text is made of: the file names them as special, apart from its vocabulary."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def _constant(self, text: str) -> tuple[int, ...]:
        return tuple(encode_texts(self._tokenizer, [text], self._name, special=False)[0].ids) if text else ()


def open_sequence_tokens(step: Sequences, root: Path) -> SequenceTokens:
    """Returns the tokeniser of a step. `root`: the data root.

    Raises:
        DataFault, UsageFault: see `dprecipe.data.tokens.read_tokenizer`, and `SequenceTokens`.
    """
    path = locate_file(step.tokenizer.path, root)
    return SequenceTokens(step, *read_tokenizer(path, step.tokenizer), path.name)


def _check_unspelled(tokenizer: Any, around: Sequence[int], name: str) -> None:
    """Checks that no text becomes a special token, or what begins or ends a text: a vocabulary that has its words
    among the others finds them in texts. What stands for unknown letters is no such token.

    Raises:
        DataFault: one does.
    """
    added = tokenizer.get_added_tokens_decoder()
    words = {number: token.content for number, token in added.items() if token.special}
    words |= {number: tokenizer.id_to_token(number) or "" for number in around}
    unknown = getattr(tokenizer.model, "unk_token", None)
    words = {number: word for number, word in words.items() if word and word != unknown}
    for number, encoding in zip(words, encode_texts(tokenizer, list(words.values()), name, special=False), strict=True):
        if number in encoding.ids:
            raise DataFault(
                f"{name}: a record that spells special token {number} would hold it, and could end its text early",
                "name a tokeniser that makes it of no text: one of bytes or merges, without `ignore_merges` where the "
                "model's vocabulary has special tokens",
            )


def _find_added(tokenizer: Any, vocabulary: int, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the special tokens that a tokeniser puts before and behind each text, which the file names apart from its
    vocabulary."""
    for probe in PROBES:
        plain = encode_texts(tokenizer, [probe], name, special=False)[0].ids
        whole = encode_texts(tokenizer, [probe], name)[0].ids
        if not plain:
            continue
        starts = [place for place in range(len(whole)) if whole[place : place + len(plain)] == plain]
        if not starts:
            raise DataFault(
                f"{name}: puts special tokens into the middle of a text",
                "name the tokeniser of a decoder, whose `post_processor` adds tokens before a text or behind it",
            )
        before, after = tuple(whole[: starts[0]]), tuple(whole[starts[0] + len(plain) :])
        if max((*before, *after), default=0) >= vocabulary:
            raise DataFault(
                f"{name}: adds token {max((*before, *after))} to each text, and declared are {vocabulary}",
                "mend `post_processor` in the file: its tokens are those of the vocabulary",
            )
        return before, after
    raise DataFault(
        f"{name}: has no token for a letter, a digit or a full stop", "name the `tokenizer.json` of a checkpoint"
    )
