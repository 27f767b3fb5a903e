"""Rows of a table to feature vectors, by constants of the recipe alone.

Both `csv` and `parquet` hand over chunks of rows as columns of text, numbers and None; a fault names row and
column and never the value: data are private, messages and logs are not.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.facts import column_facts, hashes, tokenized
from dprecipe.data.raw import Labels, Raw, mapped, unlabelled
from dprecipe.data.schema import Category, Columns, Hash, Label, Numeric, Step, Tokenize
from dprecipe.faults import DataFault

Value = str | int | float | bool | bytes | None
Place = Callable[[int], str]
"""The place of a row of a chunk, in words: `line 12 of adult.csv`."""
WORD = re.compile(r"\w+")


@final
class TableEncoder:
    """The columns of a table to features (N, D) float32, a chunk at a time."""

    def __init__(self, columns: Columns, steps: Sequence[Step]) -> None:
        self._columns = columns
        self._facts = column_facts(columns, steps)
        self._hashes = hashes(steps)
        self._tokens = tokenized(steps)
        self.width = sum(column.width for column in self._facts)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are features, in order."""
        return tuple(self._columns)

    def encode(self, chunk: Mapping[str, Sequence[Value]], rows: int, place: Place) -> NDArray[np.float32]:
        """The features of a chunk of rows, (rows, D).

        Numbers are clamped to their range and mapped to [0, 1]; a category becomes an indicator of its value,
        or of `other`; text becomes counts of its hash buckets, or the tokens of its first words.

        Raises:
            DataFault: a number is none, or a text is missing.
        """
        features = np.zeros((rows, self.width), dtype=np.float32)
        for facts, column in zip(self._facts, self._columns.values(), strict=True):
            values = chunk[facts.name]
            part = features[:, facts.start : facts.start + facts.width]
            where = _Where(facts.name, place)
            if isinstance(column, Numeric):
                part[:, 0] = _numeric(values, column, where)
            elif isinstance(column, Category):
                part[np.arange(rows), _category(values, column)] = 1.0
            elif self._tokens is not None:
                _tokens(values, self._tokens, part)
            else:
                _hashed(values, self._hashes[facts.name], part)
        return features


@final
class Collector:
    """The chunks of one table, put together. Without a label, labels are zeros and no column is read for them."""

    def __init__(self, columns: Columns, steps: Sequence[Step], label: Label | None, name_column: str | None) -> None:
        self._encoder = encoder = TableEncoder(columns, steps)
        self._label = label
        self._name_column = name_column
        self._features = [np.empty((0, encoder.width), np.float32)]
        self._labels: list[Labels] = []
        self._names: list[str] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read, each once."""
        label = () if self._label is None else (self._label.column,)
        name = () if self._name_column is None else (self._name_column,)
        return tuple(dict.fromkeys((*self._encoder.names, *label, *name)))

    def add(self, columns: Mapping[str, Sequence[Value]], rows: int, place: Place) -> None:
        """Encode and keep a chunk of rows."""
        self._features.append(self._encoder.encode(columns, rows, place))
        label = self._label
        self._labels.append(unlabelled(rows) if label is None else encode_labels(columns[label.column], label, place))
        if self._name_column is not None:
            self._names += name_texts(columns[self._name_column], self._name_column, place)

    def raw(self) -> Raw:
        """All records so far."""
        names = None if self._name_column is None else tuple(self._names)
        return Raw(np.concatenate(self._features), joined(self._labels), names)


@final
class _Where:
    """A column and a way to name its rows."""

    def __init__(self, column: str, place: Place) -> None:
        self._column = column
        self._place = place

    def fault(self, row: int, problem: str, remedy: str) -> DataFault:
        return DataFault(f"{self._place(row)}, column {self._column!r}: {problem}", remedy)


def encode_labels(values: Sequence[Value], label: Label, place: Place) -> Labels:
    """Class numbers of label values: the position in `values`, or the integer itself. Numbers to be predicted are
    clipped to their range and mapped to [-1, 1].

    Raises:
        DataFault: a label is no declared class, or no number.
    """
    where = _Where(label.column, place)
    if label.range is not None:
        return mapped(_numbers(values, where), (label.range[0], label.range[1]))
    result = np.empty(len(values), dtype=np.int64)
    if label.values is not None:
        numbers = {value.strip(): number for number, value in enumerate(label.values)}
        for row, value in enumerate(values):
            number = numbers.get(text_of(value))
            if number is None:
                raise where.fault(
                    row,
                    f"the label is none of the {len(numbers)} declared values",
                    "declare in label.values every class that can occur (from domain knowledge), or mend the row",
                )
            result[row] = number
        return result
    classes = label.classes or 0
    for row, value in enumerate(values):
        number = _integer(value)
        if number is None or not 0 <= number < classes:
            raise where.fault(
                row,
                f"the label is no integer in 0 … {classes - 1}",
                "declare label.classes as the number of classes that can occur, name the classes in "
                "label.values, "
                "or mend the row",
            )
        result[row] = number
    return result


def joined(parts: Sequence[Labels]) -> Labels:
    """The labels of all chunks of a table; of none, as of public records."""
    return np.concatenate(parts) if parts else unlabelled(0)  # type: ignore[return-value]


def name_texts(values: Sequence[Value], column: str, place: Place) -> list[str]:
    """Which unit each row belongs to, or which record it is. A row without a name is refused: it could be anybody's."""
    texts = [text_of(value) for value in values]
    for row, text in enumerate(texts):
        if text == "":
            raise _Where(column, place).fault(
                row, "is empty, and has to say whose row it is", "say it in each row, or leave the row out"
            )
    return texts


def text_of(value: Value) -> str:
    """A value as the text that categories, labels and units are compared by: without blanks around it."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace").strip() if isinstance(value, bytes) else str(value).strip()


def _integer(value: Value) -> int | None:
    if isinstance(value, int):  # true and false are 1 and 0
        return int(value)
    if isinstance(value, str):
        text = value.strip()
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) else None
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _numeric(values: Sequence[Value], column: Numeric, where: _Where) -> NDArray[np.float64]:
    numbers = np.empty(len(values), dtype=np.float64)
    for row, value in enumerate(values):
        number = _number(value)
        if number is None:
            if text_of(value) != "":
                raise where.fault(
                    row,
                    "is not a finite number",
                    "mend the value, or declare the column as a category or as text",
                )
            if column.missing is None:
                raise where.fault(
                    row,
                    "is empty",
                    f"declare what an empty field counts as: {{kind: numeric, min: {column.min:g}, "
                    f"max: {column.max:g}, missing: {column.min:g}}}",
                )
            number = column.missing
        numbers[row] = number
    span = column.max / 2 - column.min / 2  # halves: the range itself may overflow
    unit: NDArray[np.float64] = (np.clip(numbers, column.min, column.max) / 2 - column.min / 2) / span
    return np.clip(unit, 0.0, 1.0)


def _numbers(values: Sequence[Value], where: _Where) -> NDArray[np.float64]:
    numbers = np.empty(len(values), dtype=np.float64)
    for row, value in enumerate(values):
        number = _number(value)
        if number is None:
            raise where.fault(
                row,
                "the label is not a finite number",
                "mend the row or leave it out, or declare the classes in label.values",
            )
        numbers[row] = number
    return numbers


def _number(value: Value) -> float | None:
    if isinstance(value, str):
        if "_" in value:  # Python's digit grouping is no number in a file
            return None
        try:
            number = float(value)
        except ValueError:
            return None
    elif isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            return None
    else:
        return None
    return number if math.isfinite(number) else None


def _category(values: Sequence[Value], column: Category) -> list[int]:
    numbers = {value.strip(): number for number, value in enumerate(column.values)}
    other = len(column.values)
    return [numbers.get(text_of(value), other) for value in values]


def _hashed(values: Sequence[Value], step: Hash, part: NDArray[np.float32]) -> None:
    for row, value in enumerate(values):
        text = text_of(value)
        for token in WORD.findall(text.lower()) if step.tokens == "words" else (text,):
            part[row, bucket(token, step.buckets)] += 1.0


def _tokens(values: Sequence[Value], step: Tokenize, part: NDArray[np.float32]) -> None:
    for row, value in enumerate(values):
        words = WORD.findall(text_of(value).lower())[: step.length]
        part[row, : len(words)] = [1 + bucket(word, step.buckets) for word in words]


def bucket(token: str, buckets: int) -> int:
    """The bucket of a token: BLAKE2b of its UTF-8, the same on every machine and in every version."""
    digest = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets
