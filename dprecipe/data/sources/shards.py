"""Files of one format that make one table: counted and checked first, then read one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from dprecipe.data.arrow import ColumnTypes
from dprecipe.data.arrow_table import ArrowChunk, reading_arrow
from dprecipe.data.files import DataFile, name_files
from dprecipe.data.raw import Limits
from dprecipe.faults import DataFault


class ShardFormat(Protocol):
    """Reader of files of one format."""

    def count_rows(self, file: DataFile, names: tuple[str, ...], types: ColumnTypes) -> int:
        """Checks that a file has the columns that are read, and returns the number of rows that it states."""

    def batches(self, file: DataFile, part: slice, names: tuple[str, ...], max_bytes: int) -> Iterator[tuple[int, Any]]:
        """Yields (number of the first row, batch) for some rows of a file, whose values have at most `max_bytes`
        bytes.
        """

    def describe(self, file: DataFile, error: Exception) -> DataFault:
        """Returns the fault for a file that pyarrow rejects."""


def read_shards(
    shards: ShardFormat,
    files: Sequence[DataFile],
    records: tuple[int, ...] | None,
    reading: Limits,
    names: tuple[str, ...],
    max_bytes: int,
) -> Iterator[ArrowChunk]:
    """Yields the selected rows of all files. Every file is checked before the first batch.

    Raises:
        DataFault: a file is damaged or none of the format, lacks a column, or has another type of column than others.
    """
    counts, types = [], ColumnTypes()
    for file in files:
        with reading_arrow(partial(shards.describe, file), reading):
            counts.append(shards.count_rows(file, names, types))
    part = reading.span(records, sum(counts), name_files(files))
    if sum(counts) == 0:
        raise files[0].fault("has columns and no record", "name another file")
    start = 0
    for file, count in zip(files, counts, strict=True):
        own = slice(max(part.start - start, 0), min(part.stop - start, count))
        start += count
        if own.start >= own.stop:
            continue
        batches = shards.batches(file, own, names, max_bytes)
        while True:
            with reading_arrow(partial(shards.describe, file), reading):
                batch = next(batches, None)
            if batch is None:
                break
            yield ArrowChunk(file, *batch)
