"""Files of new records, for a model that is finished: read as training's were, a chunk at a time, none kept."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.files import READ_ERRORS, DataFile
from dprecipe.data.images import MAX_IMAGE_BYTES, Decode, ImageForm, decoding_images
from dprecipe.data.problems import Problems
from dprecipe.data.values import MAX_VALUE_BYTES, Values
from dprecipe.data.words import Header, find_delimiter
from dprecipe.faults import DataFault
from dprecipe.libraries import importing_libraries

if TYPE_CHECKING:
    from dprecipe.data.sources.row_selection import RowSink

FILE, IMAGE = "file", "image"
"""The column of a folder of images, the name of each; the column of images in a Parquet file."""
IMAGES = 256
MAX_HEADER = 1 << 20


@final
class AllRows:
    """All rows of a file, however many."""

    max_rows = 1 << 62

    def __init__(self, problems: Problems) -> None:
        self.problems = problems

    def excess_fault(self, count: int | None = None) -> DataFault:
        """Raises an error: it is never needed."""
        return DataFault("the file has too many rows", "split it")

    def span(self, records: tuple[int, ...] | None, count: int, subject: str) -> slice:
        """Returns every row."""
        return slice(0, count)


def add_table(file: DataFile, chunks: RowSink, problems: Problems, delimiter: str | None = None) -> None:
    """Pass the rows of a CSV or Parquet file to `chunks`. `delimiter`: of a CSV file, found in its header when None.

    Raises:
        DataFault: the file is damaged, or has not the columns; problems with fields stay in `problems`.
    """
    limits = AllRows(problems)
    if not is_parquet(file):
        from dprecipe.data.sources.read_csv import read_rows
        from dprecipe.data.sources.row_selection import RowLimit

        limit, found = RowLimit(limits.max_rows, limits.excess_fault), delimiter or guess_delimiter(file, chunks.names)
        read_rows(file, chunks, found, limit, problems)
        return
    with importing_libraries("a Parquet file"):
        from dprecipe.data.sources.read_parquet import ParquetShards, read_shards

    for chunk in read_shards(ParquetShards(finished=True), [file], None, limits, chunks.names, MAX_VALUE_BYTES):
        chunks.add(chunk.values(chunks.names, limits), chunk.batch.num_rows, chunk.place)


AddImages = Callable[[NDArray[np.generic], Mapping[str, Values], int], None]
"""Takes images (N, height, width, channels) of bytes, columns beside them, and N."""


@final
@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Files that hold new images. `table`: a CSV file that lists those of a folder. `column`: of the images in a
    Parquet file, or of their paths in the table. `delimiter`: of the table, found in its header when None."""

    file: DataFile
    table: DataFile | None = None
    column: str | None = None
    delimiter: str | None = None
    others: list[str] = field(default_factory=list)
    """Files of the folder that are no images by their names: they are passed over."""


def add_images(images: ImageFiles, form: ImageForm, names: tuple[str, ...], add: AddImages, problems: Problems) -> None:
    """Pass the images of a folder, or of a Parquet file's column, to `add`, with the values of the columns `names`:
    those of the file, or of the table; a folder without one has one, `file`.

    Raises:
        DataFault: the file is damaged, or has no such columns; images that can't be taken stay in `problems`.
    """
    with decoding_images(form) as decode:
        if images.file.path.is_dir():
            _add_folder(images, names, decode, add, problems)
        elif images.table is not None:
            raise images.file.fault("is no folder, and a table lists the images of one", "leave out --table")
        else:
            _add_image_column(images.file, images.column or IMAGE, names, decode, add, problems)


def _add_image_column(
    file: DataFile, column: str, names: tuple[str, ...], decode: Decode, add: AddImages, problems: Problems
) -> None:
    with importing_libraries("a Parquet file"):
        from dprecipe.data.sources.read_parquet import ParquetShards, read_shards

    if not is_parquet(file):
        raise file.fault("is neither a folder of images nor a Parquet file", "name one: the model takes images")
    limits, wanted = AllRows(problems), tuple(dict.fromkeys((column, *names)))
    for chunk in read_shards(ParquetShards(finished=True), [file], None, limits, wanted, MAX_IMAGE_BYTES):
        content, kept = chunk.images(column, limits), chunk.values(names, limits)
        add(decode(content, file.name, chunk.within, problems), kept, chunk.batch.num_rows)


def _add_folder(images: ImageFiles, names: tuple[str, ...], decode: Decode, add: AddImages, problems: Problems) -> None:
    from dprecipe.data.sources.image_folder import PublicImageFolder
    from dprecipe.data.sources.read_image_folder import list_images, list_table_images

    file, table = images.file, images.table
    columns: Mapping[str, Sequence[str]]
    if table is not None:
        column = images.column or FILE
        source = PublicImageFolder(
            source="image_folder",
            path=str(file.path),
            shape=(1, 1, 1),  # of no image: the model's own form is decoded to
            image_column=column,
            delimiter=images.delimiter or guess_delimiter(table, (column, *names)),
            records=None,
        )
        found, columns = list_table_images(source, str(table.path), Path(), names, problems)
    else:
        unknown = [name for name in names if name != FILE]
        if unknown:
            raise file.fault(
                f"a folder has no column {unknown[0]!r}",
                f"its one column is {FILE!r}; name a CSV file that has it and lists the images: --table",
            )
        found = list_images(file.path, file.name, Path(), images.others)
        columns = {FILE: found}
    for first in range(0, len(found), IMAGES):
        part = found[first : first + IMAGES]
        pixels = decode([file.path / name for name in part], file.name, part.__getitem__, problems)
        add(pixels, {name: columns[name][first : first + IMAGES] for name in names}, len(part))


def is_parquet(file: DataFile) -> bool:
    """Returns True if the file is Parquet, by its first bytes.

    Raises:
        DataFault: it can't be read.
    """
    try:
        with file.path.open("rb") as stream:
            return stream.read(4) == b"PAR1"
    except OSError as error:
        raise file.unreadable(error) from error


def guess_delimiter(file: DataFile, names: tuple[str, ...]) -> str:
    """Returns the delimiter of the header line: a comma, unless only another one shows a column of these names."""
    try:
        with file.open() as stream:
            line = stream.readline(MAX_HEADER).decode("utf-8-sig", "replace").rstrip("\r\n")
    except READ_ERRORS as error:
        raise file.unreadable(error) from error
    fields = next(csv.reader([line]), [])
    if any(map(Header(fields).places, names)):
        return ","
    return find_delimiter(fields, names, ",") or ","
