"""`parquet`: a table, or images in the layout of Hugging Face, read a batch of rows at a time."""

from __future__ import annotations

import faulthandler
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.files import locate_file, open_file, unreadable_fault
from dprecipe.data.images import decode_image
from dprecipe.data.raw import Labels, Raw, Reading, channels_first, drop_labels, record_number
from dprecipe.data.sources.base import Columns, Label
from dprecipe.data.sources.parquet import ImageColumn
from dprecipe.data.table import Collector, encode_labels, join_labels, name_texts
from dprecipe.data.values import Numbers, Values
from dprecipe.data.words import Header, wrong_format_fault
from dprecipe.faults import DataFault

BATCH_ROWS = 8192
MAX_VALUE_BYTES = 1 << 17
"""Average bytes of a number or text in a row group."""
MAX_IMAGE_BYTES = 16 << 20
SLACK = 1 << 20
MAX_BATCH_BYTES = 1 << 30
"""The values of a batch take at most this many bytes: a batch of long values has fewer rows."""


def read_parquet(
    path: str,
    columns: Columns | None,
    image: ImageColumn | None,
    label: Label | None,
    records: tuple[int, ...] | None,
    root: Path,
    reading: Reading,
) -> Raw:
    """The selected records: a table's features (N, D) float32, or images (N, C, H, W) uint8; texts of
    `reading.name_column`.

    Only the columns that the recipe names are read, and only the row groups that hold selected rows.

    Raises:
        DataFault: the file is missing, damaged, or is not what the recipe declares.
    """
    import pyarrow as pa

    file = locate_file(path, root)
    try:
        if image is not None:
            return _images(image, label, records, file, reading)
        collector = Collector(columns or {}, reading.data.preprocess, label, reading)
        for first, batch in _batches(file, records, collector.names, reading, MAX_VALUE_BYTES):
            values = {name: _values(batch.column(name), name, file) for name in collector.names}
            collector.add(values, batch.num_rows, partial(_row_after, file, first))
        return collector.raw()
    except pa.ArrowMemoryError:
        raise  # a MemoryError: the file is not to blame
    except (pa.ArrowException, OSError) as error:
        raise reading.problems.stop(_unreadable(file, error)) from error


def _unreadable(file: Path, error: Exception) -> DataFault:
    """The fault for a file that Parquet's reader rejects."""
    with open_file(file) as stream:
        start = stream.read(16)
    if not start:
        return DataFault(f"{file.name}: is empty", "name another file")
    if not start.startswith(b"PAR1"):
        return wrong_format_fault(file, start, "a Parquet file") or DataFault(
            f"{file.name}: is not a Parquet file",
            "name another file, or write `source: csv` if it is a text file with a header line",
        )
    return unreadable_fault(file, error)


def _images(
    image: ImageColumn, label: Label | None, records: tuple[int, ...] | None, file: Path, reading: Reading
) -> Raw:
    name_column, problems = reading.name_column, reading.problems
    extra = (None if label is None else label.column, name_column)
    columns = tuple(dict.fromkeys((image.column, *(name for name in extra if name is not None))))
    height, width, channels = image.shape
    pixels: list[NDArray[np.generic]] = [np.empty((0, channels, height, width), np.uint8)]
    labels: list[Labels] = []
    names: list[str] = []
    for first, batch in _batches(file, records, columns, reading, MAX_IMAGE_BYTES):
        place = partial(_row_after, file, first)
        content = _bytes(batch.column(image.column), image, file)
        pixels.append(channels_first(decode_image(content, image.shape, first, file, problems)))
        reading.counts.records += batch.num_rows
        if label is None:
            labels.append(drop_labels(batch.num_rows))
        else:
            values = _values(batch.column(label.column), label.column, file)
            labels.append(encode_labels(values, label, place, problems, reading.counts))
        if name_column is not None:
            names += name_texts(_values(batch.column(name_column), name_column, file), name_column, place, problems)
    return Raw(np.concatenate(pixels), join_labels(labels), None if name_column is None else tuple(names))


def _batches(
    file: Path, records: tuple[int, ...] | None, names: tuple[str, ...], reading: Reading, max_bytes: int
) -> Iterator[tuple[int, Any]]:
    """(number of the first row, batch) for the selected rows. Memory is that of a row group, whose columns take at most
    `max_bytes` bytes per value by its header."""
    import pyarrow.parquet as pq

    schema = pq.read_schema(file)
    texts = [name for name in names if name in schema.names and _is_text(schema.types[schema.names.index(name)])]
    rows = max(1, min(BATCH_ROWS, MAX_BATCH_BYTES // max_bytes))
    # Texts stay in their stored dictionaries: a long text that every row repeats is in memory once.
    with pq.ParquetFile(file, read_dictionary=texts) as table:
        present, metadata = table.schema_arrow.names, table.metadata
        _check_columns(names, present, file)
        _check_footer(metadata, file)
        part = reading.span(records, metadata.num_rows, file.name)
        if metadata.num_rows == 0:
            raise DataFault(f"{file.name}: has columns and no record", "name another file")
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


def _check_columns(names: tuple[str, ...], present: list[str], file: Path) -> None:
    times, known = Counter(present), Header(present)
    for name in names:
        if times[name] != 1:
            meant = known.nearest(name) if name not in times else None
            raise DataFault(
                f"{file.name}: has {'no' if name not in times else 'more than one'} column {name!r}; "
                + (f"it has {meant!r}" if meant else f"its columns are {', '.join(map(repr, present[:50]))}"),
                "write the name in the recipe as the file has it",
            )


def _check_footer(metadata: Any, file: Path) -> None:
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
        raise unreadable_fault(file, ValueError())


def _check_unpacked(group: Any, names: tuple[str, ...], max_bytes: int, file: Path) -> None:
    """Check that the columns of a row group take at most `max_bytes` per value."""
    for number in range(group.num_columns):
        column = group.column(number)
        path = column.path_in_schema
        if any(path == name or path.startswith(f"{name}.") for name in names) and (
            column.total_uncompressed_size > group.num_rows * max_bytes + SLACK
        ):
            raise DataFault(
                f"{file.name}: the values of {path.split('.')[0]!r} take more than {max_bytes:,} bytes each",
                "shorten them, or name another column",
            )


def _values(column: Any, name: str, file: Path) -> Values:
    """A column of numbers, truth values, dates or texts; None, or masked, if missing. Dates are in ISO 8601."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_date(column.type) or types.is_timestamp(column.type):
        column = column.cast(pa.string())

    stored = types.is_dictionary(column.type)
    kind = column.type.value_type if stored else column.type
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    text = _is_text(kind)
    if not (number or types.is_decimal(kind) or text or types.is_null(kind)):
        raise DataFault(
            f"{file.name}: column {name!r} holds {kind}, expected numbers, truth values, dates or text",
            "convert the column, or name another one",
        )
    if text:
        _check_lengths(column.dictionary if stored else column, name, file)
    elif number and not stored:
        return _numbers(column)
    try:
        values: list[Any] = column.to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError):
        # Python's message would quote the value.
        raise DataFault(
            f"{file.name}: column {name!r} has a value that can't be read: a text that is not UTF-8, or a number out "
            "of range",
            "write the file again, with texts in UTF-8",
        ) from None
    return [None if value is None else float(value) for value in values] if types.is_decimal(kind) else values


def _numbers(column: Any) -> Numbers:
    """A column of numbers or truth values, with its own type: nulls do not make whole numbers fractions."""
    import pyarrow.compute as compute

    missing = column.is_null().to_numpy(zero_copy_only=False)
    filled = compute.fill_null(column, False if column.type == "bool" else 0) if column.null_count else column
    return np.ma.MaskedArray(filled.to_numpy(zero_copy_only=False), missing)


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _check_lengths(texts: Any, name: str, file: Path) -> None:
    import pyarrow as pa
    import pyarrow.compute as compute

    max_bytes = compute.max(compute.binary_length(texts.cast(pa.large_binary()))).as_py()
    if max_bytes is not None and max_bytes > MAX_VALUE_BYTES:
        raise DataFault(
            f"{file.name}: the values of {name!r} take more than {MAX_VALUE_BYTES:,} bytes each",
            "shorten them, or name another column",
        )


def _bytes(column: Any, image: ImageColumn, file: Path) -> list[bytes | None]:
    import pyarrow.types as types

    kind = column.type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        column = column.field("bytes")
        kind = column.type
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise DataFault(
            f"{file.name}: column {image.column!r} holds {kind}, expected images: a struct of `bytes` and `path`",
            "name the image column, or declare `columns` for a table",
        )
    values: list[bytes | None] = column.to_pylist()
    return values


def _row_after(file: Path, first: int, row: int) -> str:
    return _row(file, first + row)


def _row(file: Path, row: int) -> str:
    return f"{file.name}, {record_number(row)}"
