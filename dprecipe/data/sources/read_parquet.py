"""`parquet`: a table, or images in the layout of Hugging Face, read a batch of rows at a time."""

from __future__ import annotations

import faulthandler
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dprecipe.data.arrow import MAX_VALUE_BYTES, ColumnTypes, column_values, image_bytes, is_text
from dprecipe.data.files import DataFile, locate_files, name_files
from dprecipe.data.image_table import collecting_images
from dprecipe.data.images import MAX_IMAGE_BYTES, ImageForm
from dprecipe.data.raw import Limits, Raw, Reading, record_number
from dprecipe.data.sources.base import Columns, Label
from dprecipe.data.sources.parquet import ImageColumn
from dprecipe.data.table import Collector
from dprecipe.data.words import Header, wrong_format_fault
from dprecipe.faults import DataFault

BATCH_ROWS = 8192
SLACK = 1 << 20
MAX_BATCH_BYTES = 1 << 30
"""The values of a batch take at most this many bytes: a batch of long values has fewer rows."""


def read_parquet(
    paths: Sequence[str],
    columns: Columns | None,
    image: ImageColumn | None,
    label: Label | None,
    records: tuple[int, ...] | None,
    root: Path,
    reading: Reading,
) -> Raw:
    """The selected records of all files, one after the other: a table's features (N, D) float32, or images
    (N, C, H, W) uint8; texts of `reading.name_column`.

    Only the columns that the recipe names are read, and only the row groups that hold selected rows.

    Raises:
        DataFault: a file is missing, damaged, or is not what the recipe declares.
    """
    files = locate_files(paths, root)
    if image is not None:
        return _images(image, label, records, files, reading)
    collector = Collector(columns or {}, reading.data.preprocess, label, reading)
    for file, first, batch in read_batches(files, records, collector.names, reading, MAX_VALUE_BYTES):
        with reading_file(file, reading):
            values = {name: column_values(batch.column(name), name, file) for name in collector.names}
        collector.add(values, batch.num_rows, partial(_row_after, file, first))
    return collector.raw()


@contextmanager
def reading_file(file: DataFile, reading: Limits) -> Iterator[None]:
    """What Parquet's reader raises, as faults of this file."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowMemoryError:
        raise  # a MemoryError: the file is not to blame
    except (pa.ArrowException, OSError) as error:
        raise reading.problems.stop(_unreadable(file, error)) from error


def _unreadable(file: DataFile, error: Exception) -> DataFault:
    """The fault for a file that Parquet's reader rejects."""
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


def _images(
    image: ImageColumn, label: Label | None, records: tuple[int, ...] | None, files: list[DataFile], reading: Reading
) -> Raw:
    with collecting_images(ImageForm(image.shape), label, reading) as collector:
        columns = tuple(dict.fromkeys((image.column, *collector.names)))
        for file, first, batch in read_batches(files, records, columns, reading, MAX_IMAGE_BYTES):
            with reading_file(file, reading):
                images = image_bytes(batch.column(image.column), image.column, file)
                values = {name: column_values(batch.column(name), name, file) for name in collector.names}
            collector.add(images, values, partial(_row_after, file, first), partial(_in_file, file, first), file.name)
        return collector.raw()


def read_batches(
    files: list[DataFile], records: tuple[int, ...] | None, names: tuple[str, ...], reading: Limits, max_bytes: int
) -> Iterator[tuple[DataFile, int, Any]]:
    """(file, number of its first row, batch) for the selected rows of all files. Every file is checked before the first
    batch."""
    counts, types = [], ColumnTypes()
    for file in files:
        with reading_file(file, reading):
            counts.append(_count_rows(file, names, types))
    part = reading.span(records, sum(counts), name_files(files))
    if sum(counts) == 0:
        raise files[0].fault("has columns and no record", "name another file")
    start = 0
    for file, count in zip(files, counts, strict=True):
        own = slice(max(part.start - start, 0), min(part.stop - start, count))
        if own.start < own.stop:
            batches = _file_batches(file, own, names, max_bytes)
            while True:
                with reading_file(file, reading):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield file, *batch
        start += count


def _count_rows(file: DataFile, names: tuple[str, ...], types: ColumnTypes) -> int:
    """How many rows a file has, by its footer, which describes the columns as the recipe and the other files do."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file.path) as table:
        schema, metadata = table.schema_arrow, table.metadata
        _check_columns(names, schema.names, file)
        _check_footer(metadata, file)
        for name in names:
            types.check(name, schema.field(name).type, file)
        return int(metadata.num_rows)


def _file_batches(file: DataFile, part: slice, names: tuple[str, ...], max_bytes: int) -> Iterator[tuple[int, Any]]:
    """(number of the first row, batch) for the selected rows of a file. Memory is that of a row group, whose columns
    take at most `max_bytes` bytes per value by its header."""
    import pyarrow.parquet as pq

    schema = pq.read_schema(file.path)
    texts = [name for name in names if is_text(schema.field(name).type)]
    rows = max(1, min(BATCH_ROWS, MAX_BATCH_BYTES // max_bytes))
    # Texts stay in their stored dictionaries: a long text that every row repeats is in memory once.
    with pq.ParquetFile(file.path, read_dictionary=texts) as table:
        metadata = table.metadata
        groups, first, start = [], 0, None
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if first < part.stop and first + group.num_rows > part.start:
                start = first if start is None else start
                groups.append(number)
                _check_unpacked(group, names, max_bytes, file)
            first += group.num_rows
        first = start or 0
        for batch in table.iter_batches(batch_size=rows, row_groups=groups, columns=list(names)):
            begin, end = max(part.start - first, 0), min(part.stop - first, batch.num_rows)
            if begin < end:
                yield first + begin, batch.slice(begin, end - begin)
            first += batch.num_rows
            if first >= part.stop:
                return


def _check_columns(names: tuple[str, ...], present: list[str], file: DataFile) -> None:
    times, known = Counter(present), Header(present)
    for name in names:
        if times[name] != 1:
            meant = known.nearest(name) if name not in times else None
            raise file.fault(
                f"has {'no' if name not in times else 'more than one'} column {name!r}; "
                + (f"it has {meant!r}" if meant else f"its columns are {', '.join(map(repr, present[:50]))}"),
                "write the name in the recipe as the file has it",
            )


def _check_footer(metadata: Any, file: DataFile) -> None:
    """Check that the footer describes each column. A damaged one makes pyarrow abort the process (SIGABRT), so this is
    tried in a forked process first, where the platform has fork.
    """
    if not hasattr(os, "fork"):
        return
    import resource  # not available where there is no fork

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads: the child starts none, and takes no lock
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


def _check_unpacked(group: Any, names: tuple[str, ...], max_bytes: int, file: DataFile) -> None:
    """Check that the columns of a row group take at most `max_bytes` per value."""
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


def _row_after(file: DataFile, first: int, row: int) -> str:
    return file.where(record_number(first + row))


def _in_file(file: DataFile, first: int, row: int) -> str:
    return file.at(record_number(first + row))
