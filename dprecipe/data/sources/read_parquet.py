"""`parquet`: a table, or images in the layout of Hugging Face, read a batch of rows at a time.

`read_shards` is for files of any one format that make one table: counted and checked first, then read one after the
other.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final

import pyarrow.parquet as pq

from dprecipe.data.arrow import ColumnTypes, is_text, select_columns
from dprecipe.data.arrow_table import ArrowChunk, collect_chunks, reading_arrow
from dprecipe.data.files import DataFile, locate_files, name_files
from dprecipe.data.raw import Limits, Raw, Reading
from dprecipe.data.sources.tables import AnyParquet
from dprecipe.data.words import find_columns, wrong_format_fault
from dprecipe.faults import DataFault
from dprecipe.libraries import ignoring_warnings

BATCH_ROWS = 8192
SLACK = 1 << 20
MAX_BATCH_BYTES = 1 << 30
"""The values of a batch take at most this many bytes: a batch of long values has fewer rows."""


def read(source: AnyParquet, root: Path, reading: Reading) -> Raw:
    """Returns the selected records of all files, one after the other: a table's features (N, D) float32, or images
    (N, C, H, W) uint8; texts of `reading.name_column`.

    Only the columns that the recipe names are read, and only the row groups that hold selected rows.

    Raises:
        DataFault: a file is missing, damaged, or is not what the recipe declares.
    """
    chunks = partial(read_shards, ParquetShards(), locate_files(source.features_paths, root), source.records, reading)
    return collect_chunks(chunks, source.columns, source.image, source.read_label, reading)


@final
class ParquetShards:
    """Parquet files. `finished`: see `problems.Problems`."""

    def __init__(self, finished: bool = False) -> None:
        self._finished = finished

    def count_rows(self, file: DataFile, names: tuple[str, ...], types: ColumnTypes) -> int:
        """See `ShardFormat`; by the footer."""
        with pq.ParquetFile(file.path) as table:
            schema, metadata = table.schema_arrow, table.metadata
            stored = find_columns(names, schema.names, file, finished=self._finished)
            _check_footer(metadata, file)
            for name in names:
                types.check(name, schema.field(stored[name]).type, file)
            return int(metadata.num_rows)

    def batches(self, file: DataFile, part: slice, names: tuple[str, ...], max_bytes: int) -> Iterator[tuple[int, Any]]:
        """See `ShardFormat`. Memory is that of a row group, whose columns take at most `max_bytes` bytes per value by
        its header."""
        with pq.ParquetFile(file.path) as footer:
            schema, metadata = footer.schema_arrow, footer.metadata
        stored = find_columns(names, schema.names, file, finished=self._finished)
        own, coded = list(stored.values()), _stored_dictionaries(metadata)
        texts = [name for name in own if is_text(schema.field(name).type) and name in coded]
        rows = max(1, min(BATCH_ROWS, MAX_BATCH_BYTES // max_bytes))
        # Texts stay in their stored dictionaries: a long text that every row repeats is in memory once. Without
        # pre_buffer=False all row groups would be in memory, and stay there to the end.
        with pq.ParquetFile(file.path, metadata=metadata, read_dictionary=texts, pre_buffer=False) as table:
            groups, first, start = [], 0, None
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                if first < part.stop and first + group.num_rows > part.start:
                    start = first if start is None else start
                    groups.append(number)
                    _check_unpacked(group, own, max_bytes, file)
                first += group.num_rows
            first = start or 0
            for batch in table.iter_batches(batch_size=rows, row_groups=groups, columns=own):
                begin, end = max(part.start - first, 0), min(part.stop - first, batch.num_rows)
                if begin < end:
                    yield first + begin, select_columns(batch, stored).slice(begin, end - begin)
                first += batch.num_rows
                if first >= part.stop:
                    return

    def list_columns(self, file: DataFile) -> list[str]:
        """See `ShardFormat`."""
        return list(pq.read_schema(file.path).names)

    def read_metadata(self, file: DataFile) -> Mapping[bytes, bytes]:
        """Returns the file's metadata about its columns."""
        return pq.read_schema(file.path).metadata or {}

    def describe(self, file: DataFile, error: Exception) -> DataFault:
        """Returns the fault for a file that Parquet's reader rejects."""
        with file.open() as stream:
            start = stream.read(16)
        if not start:
            return file.fault("is empty", "name another file")
        if not start.startswith(b"PAR1"):
            return wrong_format_fault(file, start, "a Parquet file") or file.fault(
                "is not a Parquet file",
                "name another file, or write `source: csv` if it is a text file with a header line",
            )
        return file.unreadable(error)


def _check_footer(metadata: Any, file: DataFile) -> None:
    """Checks that the footer describes each column. A damaged one makes pyarrow abort the process (SIGABRT), so this is
    tried in a forked process first, where the platform has fork.
    """
    if not hasattr(os, "fork"):
        return
    import resource  # not available where there is no fork

    with ignoring_warnings():  # about threads: the child starts none, and takes no lock
        child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                for column in range(group.num_columns):
                    group.column(column).total_uncompressed_size  # noqa: B018
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise file.unreadable(ValueError())


def _stored_dictionaries(metadata: Any) -> set[str]:
    """Returns the columns that begin with a dictionary in every row group. Where one has none, pyarrow would make a
    dictionary of all texts of the file, and hand it over with each batch: names of many units would not fit into
    memory.
    """
    found: set[str] | None = None
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = (group.column(column) for column in range(group.num_columns))
        own = {column.path_in_schema for column in columns if column.has_dictionary_page}
        found = own if found is None else found & own
    return found or set()


def _check_unpacked(group: Any, names: Sequence[str], max_bytes: int, file: DataFile) -> None:
    """Checks that the columns of a row group take at most `max_bytes` per value."""
    for number in range(group.num_columns):
        column = group.column(number)
        path = column.path_in_schema
        if any(path == name or path.startswith(f"{name}.") for name in names) and (
            column.total_uncompressed_size > group.num_rows * max_bytes + SLACK
        ):
            raise file.fault(
                f"the values of {path.split('.')[0]!r} take more than {max_bytes:,} bytes each",
                "shorten them, or name another column",
            )


class ShardFormat(Protocol):
    """Reader of files of one format."""

    def count_rows(self, file: DataFile, names: tuple[str, ...], types: ColumnTypes) -> int:
        """Checks that a file has the columns that are read, and returns the number of rows that it states."""

    def batches(self, file: DataFile, part: slice, names: tuple[str, ...], max_bytes: int) -> Iterator[tuple[int, Any]]:
        """Yields (number of the first row, batch) for some rows of a file, whose values have at most `max_bytes`
        bytes.
        """

    def list_columns(self, file: DataFile) -> list[str]:
        """Returns the names of a file's columns."""

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
