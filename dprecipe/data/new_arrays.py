"""Files of new images and arrays, for a model that is finished; as `new_records`, which has those of tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.files import DataFile
from dprecipe.data.images import MAX_IMAGE_BYTES, Decode, ImageForm, decoding_images
from dprecipe.data.new_records import (
    AllRows,
    RecordSink,
    find_format,
    guess_delimiter,
    list_shard_columns,
    open_shards,
    read_header,
)
from dprecipe.data.problems import NotedPlaces
from dprecipe.data.raw import record_number
from dprecipe.data.sources.image_folder import FOLDER_COLUMNS, PublicImageFolder
from dprecipe.data.values import Values
from dprecipe.faults import DataFault
from dprecipe.text.spelling import normalise_texts

FILE, IMAGE, FEATURES = "file", "image", "features"
"""The column of a folder of images, the name of each; that of images in Parquet; the array of an archive."""
IMAGES = 256
SAVE = "save it with numpy.savez_compressed(path, features=…), one entry for each record"
FORMATS = "a folder of images, a Parquet file of them, a NumPy archive (.npz) or an IDX file"


@final
@dataclass(frozen=True, slots=True)
class ArrayNames:
    """Names in files of images and arrays; None where nothing says. `images`: the column of a Parquet file's images,
    or of the paths in a table; `delimiter`: of that table, found in its header when None; `features`: the array of an
    archive."""

    images: str | None = None
    features: str | None = None
    delimiter: str | None = None


@final
@dataclass(frozen=True, slots=True)
class NewArrays:
    """Files of images or arrays, one after the other, each record of `shape`. `table`: a CSV file that lists the images
    of a folder."""

    files: Sequence[DataFile]
    shape: tuple[int, ...]
    form: ImageForm | None
    """None where the model takes no images."""
    table: DataFile | None = None
    names: ArrayNames = ArrayNames()
    others: list[str] = field(default_factory=list)
    """Files of the folders that are no images by their names: they are passed over."""

    @property
    def path_column(self) -> str:
        """The column that names an image's file: of the table, or of a folder without one."""
        return (self.names.images or FILE) if self.table is not None else FILE

    def list_columns(self) -> Collection[str]:
        """Returns the columns that all files have.

        Raises:
            DataFault: one can't be read.
        """
        every = [self._list_names(file) for file in self.files]
        return [name for name in every[0] if all(name in other for other in every)]

    def _list_names(self, file: DataFile) -> Sequence[str]:
        form = find_format(file)
        if self.table is not None:
            delimiter = self.names.delimiter or guess_delimiter(self.table, (self.path_column,))
            return read_header(self.table, delimiter)
        if form == "folder" and not _is_data_set(file):
            return FOLDER_COLUMNS
        if form in ("folder", "parquet"):
            return list_shard_columns(file)
        if form != "npz":
            return ()
        from dprecipe.data.archive import open_archive

        with open_archive(file.path, SAVE) as archive:
            return normalise_texts(archive.names)

    def read(self, sink: RecordSink) -> None:
        """Hands all records to a sink.

        Raises:
            DataFault: a file is damaged, or of another form; single records that can't be taken stay with the sink.
        """
        for file in self.files:
            form = find_format(file)
            if self.table is not None and (form != "folder" or len(self.files) > 1):
                raise file.fault("is no folder, and a table lists the images of one", "leave out --table")
            if form in ("npz", "idx"):
                self._read_arrays(file, form == "npz", sink)
            elif form not in ("folder", "parquet"):
                raise file.fault(f"is neither of {FORMATS}", "name one: the model takes images or arrays")
            elif self.form is None:
                raise file.fault(
                    f"the model takes arrays of shape {list(self.shape)}, and images or a table's columns are none",
                    SAVE,
                )
            else:
                with decoding_images(self.form) as decode:
                    if form == "folder" and not _is_data_set(file):
                        self._read_folder(file, decode, sink)
                    else:
                        self._read_column(file, decode, sink)

    def _read_arrays(self, file: DataFile, is_archive: bool, sink: RecordSink) -> None:
        try:
            if is_archive:
                self._read_archive(file, sink)
            else:
                self._read_idx(file, sink)
        except DataFault as fault:
            raise DataFault(fault.message, fault.remedy.partition(", or declare")[0], fault.private) from None

    def _read_archive(self, file: DataFile, sink: RecordSink) -> None:
        from dprecipe.data.archive import open_archive
        from dprecipe.data.sources.read_npz import NAMES, is_number

        with open_archive(file.path, SAVE) as archive:
            name = self.names.features or FEATURES
            count, first = archive.dims(name, self.shape, "numbers", is_number)[0], 0
            for one in sink.kept:
                if archive.dims(one, *NAMES)[0] != count:
                    raise file.fault(f"{name!r} and {one!r} have different numbers of records", SAVE)
            kept = {one: _Entries(archive.chunks(one, *NAMES)) for one in sink.kept}
            for some in archive.chunks(name, self.shape, "numbers", is_number) if count else ():
                columns = {one: entries.take(len(some)).tolist() for one, entries in kept.items()}
                _add_arrays(some, columns, f"{file.name}, {name!r}", first, sink)
                first += len(some)

    def _read_idx(self, file: DataFile, sink: RecordSink) -> None:
        from dprecipe.data.sources.read_idx import count_records, read_array

        if sink.kept:
            raise file.fault(f"an IDX file has no column {sink.kept[0]!r}", "leave out --keep")
        count, first = count_records(file.path, self.shape), 0
        for some in read_array(file.path, self.shape, slice(0, count)) if count else ():
            _add_arrays(some, {}, file.name, first, sink)
            first += len(some)

    def _read_column(self, file: DataFile, decode: Decode, sink: RecordSink) -> None:
        column, limits = self.names.images or IMAGE, AllRows(sink.problems)
        wanted = tuple(dict.fromkeys((column, *sink.kept)))
        for chunk in open_shards(file, limits, {})(wanted, MAX_IMAGE_BYTES):
            content, kept = chunk.images(column, limits), chunk.values(sink.kept, limits)
            within = NotedPlaces(chunk.within)
            sink.add_arrays(decode(content, file.name, within, sink.unreadable), kept, within.rows)

    def _read_folder(self, file: DataFile, decode: Decode, sink: RecordSink) -> None:
        from dprecipe.data.sources.read_image_folder import list_images, list_table_images

        table, names = self.table, sink.kept
        columns: Mapping[str, Sequence[str]]
        if table is not None:
            source = PublicImageFolder(
                source="image_folder",
                path=str(file.path),
                shape=(1, 1, 1),  # of no image: the model's own form is decoded to
                image_column=self.path_column,
                delimiter=self.names.delimiter or guess_delimiter(table, (self.path_column, *names)),
                records=None,
            )
            found, columns = list_table_images(source, str(table.path), Path(), names, sink.problems)
        else:
            unknown = [name for name in names if name not in FOLDER_COLUMNS]
            if unknown:
                raise file.fault(
                    f"a folder has no column {unknown[0]!r}",
                    f"its columns are {FOLDER_COLUMNS[0]!r} and {FOLDER_COLUMNS[1]!r}; name a CSV file that has it and "
                    "lists the images: --table",
                )
            found = list_images(file.path, file.name, Path(), self.others)
            above = [name.partition("/")[0] if "/" in name else "" for name in found]
            columns = dict(zip(FOLDER_COLUMNS, (found, above), strict=True))
        for first in range(0, len(found), IMAGES):
            part = found[first : first + IMAGES]
            within = NotedPlaces(part.__getitem__)
            pixels = decode([file.path / name for name in part], file.name, within, sink.unreadable)
            sink.add_arrays(pixels, {name: columns[name][first : first + IMAGES] for name in names}, within.rows)


@final
class _Entries:
    """The entries of an array that is read some at a time, in parts of other sizes."""

    def __init__(self, chunks: Iterator[NDArray[Any]]) -> None:
        self._chunks = chunks
        self._rest = next(chunks)

    def take(self, count: int) -> NDArray[Any]:
        """Returns the next entries."""
        parts = [self._rest]
        while sum(map(len, parts)) < count:
            parts.append(next(self._chunks))
        whole = np.concatenate(parts)
        self._rest = whole[count:]
        return whole[:count]


def _add_arrays(
    arrays: NDArray[Any], columns: Mapping[str, Values], subject: str, first: int, sink: RecordSink
) -> None:
    """Hands arrays to a sink; a record with a number that is not finite can't be read."""
    if arrays.dtype == np.uint8:
        sink.add_arrays(arrays, columns, ())
        return
    with np.errstate(over="ignore"):  # overflow becomes infinite
        numbers = arrays.astype(np.float32)
    finite = np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)
    unreadable = np.flatnonzero(~finite).tolist()
    for row in unreadable:
        sink.unreadable.add(
            subject, "a record has a number that is not finite", "correct it", record_number(first + row)
        )
    numbers[~finite] = 0
    sink.add_arrays(numbers, columns, unreadable)


def _is_data_set(file: DataFile) -> bool:
    """Returns True if a folder is one of Hugging Face's `datasets`, and not of images."""
    return any((file.path / name).is_file() for name in ("dataset_dict.json", "state.json")) or any(
        any((file.path / above).glob("*.parquet")) for above in ("", "data")
    )
