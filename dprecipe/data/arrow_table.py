"""Batches of Arrow to records: what every source of Arrow's columns passes its chunks to, a table's or images.

Classes whose names are stored with a column, as Hugging Face's `ClassLabel` does, are read by these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import pyarrow as pa
import pyarrow.compute as compute

from dprecipe.data.arrow import chat_texts, column_values, image_bytes
from dprecipe.data.files import DataFile
from dprecipe.data.images import MAX_IMAGE_BYTES, ImageForm, collecting_images
from dprecipe.data.raw import Limits, Raw, Reading, record_number
from dprecipe.data.sources.base import Columns
from dprecipe.data.sources.labels import Label
from dprecipe.data.sources.tables import ImageColumn
from dprecipe.data.table import Collector
from dprecipe.data.values import MAX_VALUE_BYTES, Values
from dprecipe.data.words import Header
from dprecipe.faults import DataFault
from dprecipe.text.spelling import normalise_text


@final
@dataclass(frozen=True, slots=True)
class ArrowChunk:
    """A batch of rows of a file, and the number of the first of them in it."""

    file: DataFile
    first: int
    batch: Any

    def values(self, names: Sequence[str], limits: Limits, chats: Collection[str] = ()) -> dict[str, Values]:
        """Columns as fields of a table; those of `chats` hold conversations.

        Raises:
            DataFault: one holds what a table can't.
        """
        with reading_arrow(self.file.unreadable, limits):
            readers = {name: chat_texts if name in chats else column_values for name in names}
            return {name: read(self.batch.column(name), name, self.file) for name, read in readers.items()}

    def images(self, name: str, limits: Limits) -> list[bytes | None]:
        """Returns a column of encoded images.

        Raises:
            DataFault: it is none.
        """
        with reading_arrow(self.file.unreadable, limits):
            return image_bytes(self.batch.column(name), name, self.file, limits.problems.finished)

    def place(self, row: int) -> str:
        """Returns the place of a row, for its columns."""
        return self.file.where(record_number(self.first + row))

    def within(self, row: int) -> str:
        """Returns the place of a row in its file."""
        return self.file.at(record_number(self.first + row))


Chunks = Callable[[tuple[str, ...], int], Iterator[ArrowChunk]]
"""The chunks of a source, given the columns to read and how many bytes a value may have."""


def collect_chunks(
    chunks: Chunks, columns: Columns | None, image: ImageColumn | None, label: Label | None, reading: Reading
) -> Raw:
    """Returns the records of all chunks: a table's features (N, D) float32, or images (N, C, H, W) uint8.

    Raises:
        DataFault: a column holds what a table can't, or a record does not match the recipe.
    """
    if image is not None:
        return _collect_images(chunks, image, label, reading)
    collector = Collector(columns or {}, reading.data.preprocess, label, reading)
    for chunk in chunks(collector.names, MAX_VALUE_BYTES):
        collector.add(chunk.values(collector.names, reading, collector.chats), chunk.batch.num_rows, chunk.place)
    return collector.raw()


def _collect_images(chunks: Chunks, image: ImageColumn, label: Label | None, reading: Reading) -> Raw:
    with collecting_images(ImageForm(image.shape), label, reading) as collector:
        names = tuple(dict.fromkeys((image.column, *collector.names)))
        for chunk in chunks(names, MAX_IMAGE_BYTES):
            images, values = chunk.images(image.column, reading), chunk.values(collector.names, reading)
            collector.add(images, values, chunk.place, chunk.within, chunk.file.name)
        return collector.raw()


@contextmanager
def reading_arrow(fault: Callable[[Exception], DataFault], reading: Limits) -> Iterator[None]:
    """Turns what pyarrow raises into a fault of the data that it reads. Too little memory stays an error."""
    try:
        yield
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise reading.problems.stop(fault(error)) from error
    except UnicodeDecodeError as error:  # its message would quote the file
        raise reading.problems.stop(fault(error)) from None


def named_columns(columns: Columns, label: Label | None) -> frozenset[str]:
    """Returns the columns that are read by the names of their classes: their names or texts are declared."""
    named = {name for name, column in columns.items() if column.limits is None}
    if label is not None and (label.values is not None or label.several is not None):
        named.update(label.read_columns)
    return frozenset(named)


def name_classes(batch: Any, classes: Mapping[str, list[str]]) -> Any:
    """Returns a batch of Arrow with names instead of class numbers. A number without one is missing, as -1 is."""
    for name, names in classes.items():
        batch = batch.set_column(batch.schema.names.index(name), name, _names(batch.column(name), names))
    return batch


def _names(column: Any, names: list[str]) -> Any:
    if not pa.types.is_integer(column.type):
        return column
    known = compute.and_(compute.greater_equal(column, 0), compute.less(column, len(names)))
    return pa.array(names, pa.string()).take(compute.if_else(known, column, None))


def check_classes(stored: Mapping[str, list[str]], label: Label, subject: str) -> None:
    """Checks that all stored classes of a label's columns are declared; in any order.

    Raises:
        DataFault: one is not.
    """
    declared = label.values or ()
    for column in label.read_columns if declared else ():
        others = [name for name in stored.get(column, ()) if normalise_text(name) not in declared]
        if not others:
            continue
        meant = Header(declared).nearest(others[0])
        raise DataFault(
            f"{subject}, column {column!r}: a class of the data set is none of the {len(declared)} declared ones"
            + (f", and nearly {meant!r}" if meant is not None else ""),
            "declare all classes in label.values as the data set names them",
            ", ".join(map(repr, others[:20])),
        )
