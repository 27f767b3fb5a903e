"""Step `sequences`: records to sequences of tokens, in which a model learns the next token.

A sequence is one record's, whole or cut: nothing is packed, so no token of one record is read beside another's. A text
may be cut into several (`max_sequences`), which a model reads each by itself: they are one record, with one label. Each
segment is made tokens by itself (`SequenceTokens`): what the tokeniser puts before a text stands once, at the
beginning, and what it puts behind one (or `end`) once, at the end of a text that is not cut.

Axes: N records, L places: those of `max_sequences` sequences of `max_length`, one behind the other. Features are
(N, 2, L) float32, exact for tokens below 2^20: row 0 the input tokens, padding behind the last; row 1 the token where
it is learned, -100 where it is not. Labels (N,) int64 are the number of learned tokens that have one before them in
their sequence, which is what a model's outputs are for.

Conversations are strictly read. Nothing is rendered by a template, which would be code.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.counts import SourceCounts
from dprecipe.data.encoders import HALF_LETTER, HALF_REMEDY, ColumnReport, check_texts, has_half_letter
from dprecipe.data.problems import Place, Problems
from dprecipe.data.row_text import RowText
from dprecipe.data.schema import ASSISTANT, Columns, Sequences
from dprecipe.data.tokens import SequenceTokens
from dprecipe.data.values import Values

MAX_MESSAGES = 10_000


class NoChat(ValueError):
    """A field is no conversation; the text says why, without anything of the field."""


def parse_chat(text: str, roles: Collection[str]) -> list[tuple[str, str]]:
    """Returns (role, content) of each message of a field: a list of {role, content} in JSON, with no other keys
    (unless null).

    Raises:
        NoChat: it is none, or a role is not declared.
    """
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError):
        raise NoChat("a field is no list of messages in JSON") from None
    if not isinstance(messages, list) or not messages:
        raise NoChat("a field is no list of messages, or an empty one")
    if len(messages) > MAX_MESSAGES:
        raise NoChat(f"a conversation has more than {MAX_MESSAGES:,} messages")
    return [_parse_message(message, roles) for message in messages]


def _parse_message(message: Any, roles: Collection[str]) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise NoChat("a message is no mapping of role and content")
    role, content = message.get("role"), message.get("content")
    if not (isinstance(role, str) and isinstance(content, str)):
        raise NoChat("a message has no text as its `role` or its `content`")
    if any(value is not None for key, value in message.items() if key not in ("role", "content")):
        raise NoChat("a message has more than a role and a content")
    if role not in roles:
        raise NoChat("a message is of a role that `roles` does not declare")
    return role, content


IGNORED = -100
"""Value that stands for a label that is not learned: the constant of the field."""

Segment = tuple[Sequence[int], bool]
"""Tokens, and whether they are learned."""


@final
class SequenceEncoder:
    """The columns of a table to sequences, a chunk at a time."""

    def __init__(
        self, columns: Columns, step: Sequences, problems: Problems, counts: SourceCounts, tokens: SequenceTokens
    ) -> None:
        self._columns, self._step = columns, step
        self._problems, self._counts, self._tokens = problems, counts, tokens
        counts.sequences.length = step.places

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read, in order; others that are declared are not."""
        return self._step.columns

    @property
    def chats(self) -> frozenset[str]:
        """Names of the columns that are lists of messages."""
        return frozenset(() if self._step.chat is None else (self._step.chat,))

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the columns that may be read as numbers."""
        return tuple(name for name in self._step.row or () if self._columns[name].is_plain_number)

    @property
    def empty(self) -> NDArray[np.float32]:
        """The features of no record."""
        return np.empty((0, 2, self._step.places), np.float32)

    def encode(
        self, chunk: Mapping[str, Values], rows: int, place: Place
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns the features and labels of a chunk of rows.

        A field that holds no such text, and a record with nothing to learn, are added to the problems.

        Raises:
            DataFault: the tokeniser has no token for a part of a text.
        """
        reports = {name: ColumnReport(name, place, self._problems) for name in self.names}
        features = np.full((rows, 2, self._step.places), IGNORED, np.float32)
        features[:, 0] = self._step.tokenizer.padding
        labels = np.ones(rows, np.int64)
        self._counts.records += rows
        for row, segments in enumerate(self._segments(chunk, rows, reports)):
            if segments is not None:
                labels[row] = self._write(segments, features[row])
                if labels[row] == 0:
                    _report_nothing(self._step, row, reports)
        return features, labels

    def _write(self, segments: Sequence[Segment], features: NDArray[np.float32]) -> int:
        """Writes the sequences of a record; returns how many of its tokens are learned."""
        tokens, labels, length = list(self._tokens.before), [IGNORED] * len(self._tokens.before), self._step.places
        for part, learned in [*segments, (self._tokens.after, segments[-1][1])]:
            tokens.extend(part)
            labels.extend(part if learned else [IGNORED] * len(part))
        kept = min(len(tokens), length)
        features[0, :kept], features[1, :kept] = tokens[:length], labels[:length]
        features[1, self._step.max_length :: self._step.max_length] = IGNORED  # no token of their sequence before them
        count = int(np.count_nonzero(features[1, 1:] >= 0))
        self._counts.sequences.add(kept, count, len(tokens) > length)
        return count

    def _segments(
        self, chunk: Mapping[str, Values], rows: int, reports: Mapping[str, ColumnReport]
    ) -> Iterator[list[Segment] | None]:
        """Yields the segments of each row; None for a row with a problem."""
        step = self._step
        if step.chat is not None:
            yield from self._turns(chunk[step.chat], reports[step.chat])
            return
        if step.row is not None:
            texts = RowText(self._columns, step.row).write(chunk, rows, reports, self._counts)
            for learned in self._encode(texts):
                yield None if learned is None else [(learned, True)]
            return
        if step.text is not None:
            for learned in self._encode(check_texts(chunk[step.text], reports[step.text])):
                yield None if learned is None else [(learned, True)]
            return
        prompt, completion = step.prompt or "", step.completion or ""
        questions = self._encode(check_texts(chunk[prompt], reports[prompt], may_be_empty=True))
        answers = self._encode(check_texts(chunk[completion], reports[completion]))
        for read, learned in zip(questions, answers, strict=True):
            yield None if read is None or learned is None else [(read, False), (learned, True)]

    def _encode(self, texts: Sequence[str | None]) -> list[list[int] | None]:
        """Returns the tokens of each text; None where there is none."""
        encoded = self._tokens.encode([text or "" for text in texts])
        return [None if text is None else tokens for text, tokens in zip(texts, encoded, strict=True)]

    def _turns(self, values: Values, report: ColumnReport) -> Iterator[list[Segment] | None]:
        """Yields the segments of each conversation: the turns of the assistant are learned, with the text behind
        them.
        """
        for row, text in enumerate(check_texts(values, report)):
            try:
                messages = [] if text is None else parse_chat(text, self._tokens.turns)
            except NoChat as error:
                report.add(row, str(error), 'hold [{"role": …, "content": …}, …] in each field, with roles of `roles`')
                messages = []
            if any(has_half_letter(content) for _, content in messages):
                report.add(row, HALF_LETTER, HALF_REMEDY)
                messages = []
            if not messages:
                yield None
                continue
            encoded = self._tokens.encode([content for _, content in messages])
            segments: list[Segment] = []
            for (role, _), tokens in zip(messages, encoded, strict=True):
                before, after = self._tokens.turns[role]
                segments += [(before, False), (tokens, role == ASSISTANT), (after, role == ASSISTANT)]
            yield segments


def _report_nothing(step: Sequences, row: int, reports: Mapping[str, ColumnReport]) -> None:
    """Reports a sequence in which no token is learned."""
    if step.chat is not None:
        why = f"no turn of the {ASSISTANT} is within max_length: there is nothing to learn"
    elif step.completion is not None:
        why = "a prompt fills max_length: nothing of its completion is learned"
    else:
        why = "a text has fewer than two tokens: there is no next one to learn"
    reports[step.columns[-1]].add(row, why, "declare a larger max_length, or leave the row out")
