"""Votes in a table, CSV or Parquet: all columns are votes, named in the header. They are untrusted: all are checked.

Axes: Q queries, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.files import DataFile
from dprecipe.data.problems import Problems
from dprecipe.data.sources.read_csv import CsvLines, split_rows
from dprecipe.data.values import Value, parse_integer
from dprecipe.faults import DataFault
from dprecipe.libraries import importing_libraries
from dprecipe.text.spelling import normalise_text, normalise_texts

MAX_VALUE_BYTES = 4096
"""Bytes of a value of a Parquet column, on average: a class name."""
MISSING = -1


@final
@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a table's columns: which are read, in order, and what a cell may be."""

    places: Sequence[int]
    most: int
    """The largest number that a cell may hold."""
    noun: str
    names: Mapping[str, int]
    """Numbers of the texts that a cell may hold instead."""

    def number(self, value: Value) -> int:
        """Returns the number that a cell stands for; `MISSING` for what is no such number or name."""
        named = self.names.get(normalise_text(value)) if isinstance(value, str) else None
        number = parse_integer(value) if named is None else named
        return number if number is not None and 0 <= number <= self.most else MISSING


@final
@dataclass(frozen=True, slots=True)
class VotesTable:
    """Rows of a table, and their places in the file, as its owner finds them."""

    numbers: NDArray[np.int64]
    """The cells, (Q, C)."""
    places: Sequence[str]
    """A place for each row."""


Choose = Callable[[DataFile, Sequence[str]], Meaning]
"""A function that takes the names of all columns; it raises `DataFault` if they are none of votes."""


def read_names(file: DataFile, form: Literal["csv", "parquet"]) -> list[str]:
    """Returns the names of a table's columns.

    Raises:
        DataFault: the file is no such table.
    """
    names: list[Sequence[str]] = []

    def keep(_: DataFile, header: Sequence[str]) -> Meaning:
        names.append(header)
        return Meaning((), 0, "", {})

    (read_csv if form == "csv" else read_parquet)(file, keep, 0, 0)
    return list(names[0])


def read_csv(file: DataFile, choose: Choose, first: int, end: int) -> VotesTable:
    """Returns the rows from `first` up to `end`, or as many as there are. Nothing after them is read.

    Raises:
        DataFault: the file is no such table, or a cell is no vote.
    """
    numbers: list[NDArray[np.int64]] = []
    places: list[str] = []
    with file.open() as stream:
        rows = split_rows(CsvLines(stream, file, Problems(private=True)), ",")
        header = next(rows, None)
        if header is None:
            raise file.fault("is empty", "name another file: a CSV file begins with a header line")
        meaning = choose(file, normalise_texts(header[1]))
        known: dict[str, int] = {}
        for number, (line, fields) in enumerate(rows):
            if number >= end:
                break
            if number >= first:
                cells = [fields[place] for place in meaning.places]
                for text in cells:
                    if text not in known and (value := meaning.number(text)) != MISSING:
                        known[text] = value
                place = f"line {line}"
                if not all(text in known for text in cells):
                    raise _wrong_cell(file, meaning, header[1], cells, place)
                numbers.append(np.array([known[text] for text in cells], np.int64))
                places.append(place)
    return VotesTable(np.stack(numbers) if numbers else np.empty((0, len(meaning.places)), np.int64), places)


def read_parquet(file: DataFile, choose: Choose, first: int, end: int) -> VotesTable:
    """Does as `read_csv`. Columns hold integers or, for labels, texts."""
    with importing_libraries("a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        from dprecipe.data.arrow import ColumnTypes
        from dprecipe.data.sources.read_parquet import ParquetShards
    shards, types, chunks = ParquetShards(), ColumnTypes(), []
    try:
        names = tuple(normalise_texts(pq.read_schema(file.path).names))
        meaning = choose(file, names)
        read = tuple(names[place] for place in meaning.places)
        count = shards.count_rows(file, read, types)
        for start, batch in shards.batches(file, slice(first, min(end, count)), read, MAX_VALUE_BYTES):
            chunks.append(np.stack([_column(file, meaning, batch.column(name), name, start) for name in read], axis=1))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise shards.describe(file, error) from None
    numbers = np.concatenate(chunks) if chunks else np.empty((0, len(read)), np.int64)
    return VotesTable(numbers, [f"row {first + row}" for row in range(len(numbers))])


def _column(file: DataFile, meaning: Meaning, column: Any, name: str, start: int) -> NDArray[np.int64]:
    with importing_libraries("a Parquet file"):
        import pyarrow as pa

        from dprecipe.data.arrow import is_text
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_integer(kind) or (meaning.names and is_text(kind))):
        expected = "integers, or names of classes" if meaning.names else "integers"
        raise file.fault(f"column {name!r} holds {kind}, expected {expected}", "save votes as whole numbers")
    values = column.to_pylist()
    numbers = np.fromiter((meaning.number(value) for value in values), np.int64, len(values))
    wrong = np.flatnonzero(numbers < 0)
    if len(wrong):
        raise _wrong_cell(file, meaning, [name], [values[wrong[0]]], f"row {start + wrong[0]}")
    return numbers


def _wrong_cell(
    file: DataFile, meaning: Meaning, header: Sequence[str], cells: Sequence[Value], place: str
) -> DataFault:
    """Returns the fault for the first of these cells that is no vote. What the file holds is for its owner alone."""
    column, value = next(pair for pair in _pairs(meaning, header, cells) if meaning.number(pair[1]) == MISSING)
    shown = "nothing" if value is None or value == "" else repr(value)[:60]
    return DataFault(
        f"{file.name}: a cell holds no {meaning.noun}",
        f"write whole numbers from 0 to {meaning.most}" + (", or the names of classes" if meaning.names else ""),
        file.at(f"{place}, column {column!r} holds {shown}"),
    )


def _pairs(meaning: Meaning, header: Sequence[str], cells: Sequence[Value]) -> Iterator[tuple[str, Value]]:
    names = [header[place] for place in meaning.places] if len(header) > 1 else header
    return zip(names, cells, strict=True)
