"""`parquet`: a table, or images in the layout of Hugging Face, read a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.files import locate, unreadable
from dprecipe.data.images import decode
from dprecipe.data.raw import Labels, Raw, channels_first, span, unlabelled
from dprecipe.data.schema import Data, ImageColumn, Label, Parquet, PublicParquet
from dprecipe.data.table import Collector, encode_labels, joined, name_texts
from dprecipe.faults import DataFault

BATCH_ROWS = 1024


def read(source: Parquet | PublicParquet, data: Data, root: Path, name_column: str | None) -> Raw:
    """The selected records: a table's features (N, D) float32, or images (N, C, H, W) uint8; texts of `name_column`.

    Only the columns that the recipe names are read.

    Raises:
        DataFault: the file is missing, damaged, or is not what the recipe declares; names row and column.
    """
    import pyarrow as pa

    file = locate(source.path, root)
    label = source.label if isinstance(source, Parquet) else None
    try:
        if source.image is not None:
            return _images(source.image, label, source.records, file, name_column)
        collector = Collector(source.columns or {}, data.preprocess, label, name_column)
        for first, batch in _batches(file, source.records, collector.names):
            columns = {name: _values(batch.column(name), name, file) for name in collector.names}
            collector.add(columns, batch.num_rows, lambda row, first=first: _row(file, first + row))  # type: ignore[misc]
        return collector.raw()
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error


def _images(
    image: ImageColumn, label: Label | None, records: tuple[int, ...] | None, file: Path, name_column: str | None
) -> Raw:
    extra = (None if label is None else label.column, name_column)
    columns = tuple(dict.fromkeys((image.column, *(name for name in extra if name is not None))))
    height, width, channels = image.shape
    pixels: list[NDArray[np.generic]] = [np.empty((0, channels, height, width), np.uint8)]
    labels: list[Labels] = []
    names: list[str] = []
    for first, batch in _batches(file, records, columns):

        def place(row: int, first: int = first) -> str:
            return _row(file, first + row)

        content = _bytes(batch.column(image.column), image, file)
        pixels.append(channels_first(decode(content, image.shape, first, file)))
        if label is None:
            labels.append(unlabelled(batch.num_rows))
        else:
            labels.append(encode_labels(_values(batch.column(label.column), label.column, file), label, place))
        if name_column is not None:
            names += name_texts(_values(batch.column(name_column), name_column, file), name_column, place)
    return Raw(np.concatenate(pixels), joined(labels), None if name_column is None else tuple(names))


def _batches(file: Path, records: tuple[int, ...] | None, names: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
    """(number of the first row, batch) for the selected rows; memory is that of a row group."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as table:
        present = table.schema_arrow.names
        for name in names:
            if present.count(name) != 1:
                raise DataFault(
                    f"{file.name}: has {present.count(name) or 'no'} column {name!r}; "
                    f"its columns are {', '.join(map(repr, present[:50]))}",
                    "check the spelling of the column in the recipe",
                )
        part = span(records, table.metadata.num_rows, file.name)
        first = 0
        for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=list(names)):
            start, end = max(part.start - first, 0), min(part.stop - first, batch.num_rows)
            if start < end:
                yield first + start, batch.slice(start, end - start)
            first += batch.num_rows
            if first >= part.stop:
                return


def _values(column: Any, name: str, file: Path) -> list[Any]:
    """A column of numbers, truth values or texts, as Python values; a missing one is None."""
    import pyarrow.types as types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    scalar = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if not (scalar or text or types.is_null(kind)):
        raise DataFault(
            f"{file.name}: column {name!r} holds {column.type}, expected numbers, truth values or text",
            "store it so, or name another column",
        )
    values: list[Any] = column.to_pylist()
    return [None if value is None else float(value) for value in values] if types.is_decimal(kind) else values


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


def _row(file: Path, row: int) -> str:
    return f"{file.name}, row {row} (counted from 0)"
