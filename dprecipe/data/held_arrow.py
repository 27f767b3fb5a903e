"""Columns of Arrow held in memory: a table of pyarrow, or a data set of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, final

import pyarrow as pa

from dprecipe.data.arrow import select_columns
from dprecipe.data.arrow_table import ArrowChunk, check_classes, collect_chunks, name_classes, named_columns
from dprecipe.data.files import DataFile
from dprecipe.data.held import CHUNK_ROWS, HeldRecords, label_of, no_table_fault
from dprecipe.data.raw import Raw, Reading
from dprecipe.data.sources.table import AnySource
from dprecipe.data.sources.tables import TableOrImages
from dprecipe.data.words import find_columns
from dprecipe.text.spelling import normalise_text


@final
class HeldArrow(HeldRecords):
    """Columns of Arrow: a table's, or encoded images. `classes` are the names of class numbers, by column."""

    def __init__(self, table: Any, classes: Mapping[str, list[str]] | None = None) -> None:
        """`table`: a table of pyarrow, or an object with its `num_rows`, `names` and `part(names, start, stop)`."""
        self._table = table
        self._classes = {normalise_text(name): values for name, values in (classes or {}).items()}

    def read(self, source: AnySource, reading: Reading) -> Raw:
        image = source.image if isinstance(source, TableOrImages) else None
        if source.table_columns is None and image is None:
            raise no_table_fault(source, reading)
        label = label_of(source, reading)
        if label is not None:
            check_classes(self._classes, label, f"`{reading.role}`")
        chunks = partial(self._chunks, source, reading, named_columns(source.table_columns or {}, label))
        return collect_chunks(chunks, source.table_columns, image, label, reading)

    def _chunks(
        self, source: AnySource, reading: Reading, named: frozenset[str], names: tuple[str, ...], max_bytes: int
    ) -> Iterator[ArrowChunk]:
        file = DataFile(Path(), f"`{reading.role}`", f"`{reading.role}`")
        part = reading.span(source.records, self._table.num_rows, file.name)
        stored = find_columns(names, list(self._table.names), file)
        classes = {name: values for name, values in self._classes.items() if name in named and name in names}
        rows = max(1, min(CHUNK_ROWS, (1 << 30) // max_bytes))
        for start in range(part.start, part.stop, rows):
            some = self._table.part(list(stored.values()), start, min(start + rows, part.stop))
            yield ArrowChunk(file, start, name_classes(select_columns(some, stored), classes))


@final
class ArrowTable:
    """A table of pyarrow, a part at a time."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.num_rows, self.names = table.num_rows, table.schema.names

    def part(self, names: list[str], start: int, stop: int) -> Any:
        """Returns some rows of some columns, as one batch."""
        return _one_batch(self._table.select(names).slice(start, stop - start))


@final
class DatasetTable:
    """A data set of Hugging Face, as it is stored: its selection of rows counts, a transform of them does not."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.num_rows, self.names = len(dataset), dataset.column_names

    def part(self, names: list[str], start: int, stop: int) -> Any:
        """Returns some rows of some columns, as one batch."""
        return _one_batch(self._dataset.select_columns(names).with_format("arrow")[start:stop])


def _one_batch(table: Any) -> Any:
    columns = [column.combine_chunks() for column in table.columns]
    arrays = [pa.concat_arrays(c.chunks) if isinstance(c, pa.ChunkedArray) else c for c in columns]
    return pa.RecordBatch.from_arrays(arrays, names=table.schema.names)
