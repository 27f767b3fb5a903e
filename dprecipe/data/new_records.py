"""Files of new records, for a model that is finished: read as training's were, a chunk at a time, none kept.

Here are tables, and what a file is; images and arrays are in `new_arrays`.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.columns import Columns
from dprecipe.data.files import READ_ERRORS, DataFile
from dprecipe.data.problems import Place, Problems
from dprecipe.data.values import MAX_VALUE_BYTES, Values
from dprecipe.data.words import Header, find_delimiter
from dprecipe.faults import DataFault
from dprecipe.libraries import importing_libraries
from dprecipe.text.spelling import normalise_texts

if TYPE_CHECKING:
    from dprecipe.data.arrow_table import Chunks
    from dprecipe.data.sources.queries import AnyDuckDb
    from dprecipe.data.sources.read_duckdb import Result
    from dprecipe.data.sources.read_parquet import ShardFormat

Format = Literal["csv", "json_lines", "parquet", "npz", "idx", "folder"]
JSON_ENDINGS = (".json", ".jsonl", ".ndjson")
MAX_FIRST_LINE = 4 << 20
MAX_BLANK = 100_000
RESULT = "the query's result"
SPLIT = "name the folder of one split, or its Parquet files"


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


class RecordSink(Protocol):
    """Receiver of new records. `names`: the columns of a table that are read; `kept`: those that are copied, of records
    of any form. `problems`: of files, which end the reading; `unreadable`: of single records."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def numeric(self) -> frozenset[str]: ...
    @property
    def kept(self) -> tuple[str, ...]: ...
    @property
    def problems(self) -> Problems: ...
    @property
    def unreadable(self) -> Problems: ...
    def add(self, columns: Mapping[str, Values], rows: int, place: Place) -> None: ...
    def add_arrays(
        self, arrays: NDArray[np.generic], columns: Mapping[str, Values], unreadable: Collection[int]
    ) -> None: ...


class NewRecords(Protocol):
    """Files of new records: the columns that may be copied, and all of the records."""

    def list_columns(self) -> Collection[str]: ...
    def read(self, sink: RecordSink) -> None: ...


@final
@dataclass(frozen=True, slots=True)
class NewTables:
    """Tables, one file or folder after the other. `columns`: those of the model, by which the delimiter of a CSV file
    is found where there is no `delimiter`."""

    files: Sequence[DataFile]
    columns: Columns
    delimiter: str | None = None

    def list_columns(self) -> Collection[str]:
        """Returns the columns that all files have.

        Raises:
            DataFault: one can't be read.
        """
        every = [self._list_names(file) for file in self.files]
        return [name for name in every[0] if all(name in other for other in every)]

    def read(self, sink: RecordSink) -> None:
        """Hands all rows to a sink.

        Raises:
            DataFault: a file is damaged, or has not the columns; problems with fields stay with the sink.
        """
        for file in self.files:
            self._read_file(file, sink)

    def _read_file(self, file: DataFile, sink: RecordSink) -> None:
        from dprecipe.data.sources.row_selection import RowLimit

        limits, form = AllRows(sink.problems), find_format(file)
        limit = RowLimit(limits.max_rows, limits.excess_fault)
        if form in ("parquet", "folder"):
            add_chunks(open_shards(file, limits, self.columns), sink, limits)
        elif form == "json_lines":
            from dprecipe.data.sources.read_json_lines import read_objects

            read_objects(file, sink, limit, sink.problems)
        else:
            from dprecipe.data.sources.read_csv import read_rows

            found = self.delimiter or guess_delimiter(file, (*self.columns, *sink.kept))
            read_rows(file, sink, found, limit, sink.problems)

    def _list_names(self, file: DataFile) -> list[str]:
        form = find_format(file)
        if form in ("parquet", "folder"):
            return list_shard_columns(file)
        if form != "json_lines":
            return read_header(file, self.delimiter or guess_delimiter(file, tuple(self.columns)))
        from dprecipe.data.sources.read_json_lines import parse_object

        try:
            return list(parse_object(read_first_line(file).encode()))
        except ValueError:
            return []  # reading it says what is wrong


@final
@dataclass(frozen=True, slots=True)
class NewQuery:
    """Files of the tables of a release's query, whose result is the table of records."""

    source: AnyDuckDb
    tables: Mapping[str, Sequence[DataFile]]

    def list_columns(self) -> Collection[str]:
        """Returns the columns of the result.

        Raises:
            DataFault: a file is damaged, or the query does not fit the files.
        """
        with self._open(AllRows(Problems(private=True, finished=True))) as result:
            return normalise_texts(result.names)

    def read(self, sink: RecordSink) -> None:
        """Hands the rows of the result to a sink.

        Raises:
            DataFault: as `list_columns`; or the query fails on a row or takes too long, or the result has not the
                columns.
        """
        limits = AllRows(sink.problems)
        with self._open(limits) as result:
            add_chunks(result.chunks, sink, limits)

    @contextmanager
    def _open(self, limits: AllRows) -> Iterator[Result]:
        with importing_libraries("a query"):
            from dprecipe.data.sources.query_time import allow_seconds
            from dprecipe.data.sources.read_duckdb import open_result

        # The query is not of the person who runs it.
        seconds = allow_seconds(file.path for files in self.tables.values() for file in files)
        place = DataFile(Path(), RESULT, RESULT)
        with open_result(self.source, self.tables, False, place, limits, seconds) as result:
            yield result


def add_chunks(chunks: Chunks, sink: RecordSink, limits: AllRows) -> None:
    """Hands chunks of Arrow to a sink, as rows of a table."""
    for chunk in chunks(sink.names, MAX_VALUE_BYTES):
        sink.add(chunk.values(sink.names, limits), chunk.batch.num_rows, chunk.place)


def find_format(file: DataFile) -> Format:
    """Finds the format of a file by its first bytes, and only where these could be of CSV too by its name.

    Raises:
        DataFault: it can't be read.
    """
    if file.path.is_dir():
        return "folder"
    if file.path.exists() and not file.path.is_file():
        raise file.fault("is neither a file nor a folder: a pipe can be read only once", "save it as a file")
    try:
        with file.open() as stream:
            start = stream.read(64)
    except READ_ERRORS as error:
        raise file.unreadable(error) from error
    for magic, form in _MAGIC.items():
        if start.startswith(magic):
            return form
    is_object = start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    names_json = file.path.name.lower().removesuffix(".gz").endswith(JSON_ENDINGS)
    return "json_lines" if is_object or names_json else "csv"


_MAGIC: Mapping[bytes, Format] = {b"PAR1": "parquet", b"PK\x03\x04": "npz", b"\0\0\x08": "idx"}


def open_shards(file: DataFile, limits: AllRows, columns: Columns) -> Chunks:
    """Returns the chunks of a Parquet file, or of a folder of Hugging Face's `datasets`, whose classes are named in
    `columns` that are read by names.

    Raises:
        DataFault: the folder is none, or has several splits.
    """
    shards, files = _find_shards(file, columns)
    with importing_libraries("a Parquet file"):
        from dprecipe.data.sources.read_parquet import read_shards

    return partial(read_shards, shards, files, None, limits)


def list_shard_columns(file: DataFile) -> list[str]:
    """Returns the columns of the first file that `open_shards` reads.

    Raises:
        DataFault: it can't be read.
    """
    shards, files = _find_shards(file, {})
    with importing_libraries("a Parquet file"):
        from dprecipe.data.arrow_table import reading_arrow

    limits = AllRows(Problems(private=True, finished=True))
    with reading_arrow(partial(shards.describe, files[0]), limits):
        return normalise_texts(shards.list_columns(files[0]))


def _find_shards(file: DataFile, columns: Columns) -> tuple[ShardFormat, Sequence[DataFile]]:
    with importing_libraries("a Parquet file"):
        from dprecipe.data.sources.read_datasets import NamedClasses, find_shards
        from dprecipe.data.sources.read_parquet import ParquetShards

    if not file.path.is_dir():
        return ParquetShards(finished=True), [file]
    try:
        shards, files = find_shards(str(file.path), None, Path(), finished=True)
    except DataFault as fault:
        raise DataFault(fault.message, SPLIT if "`split`" in fault.remedy else fault.remedy, fault.private) from None
    return NamedClasses(shards, columns, None), files


def read_first_line(file: DataFile) -> str:
    """Returns the first line that is not blank.

    Raises:
        DataFault: it can't be read.
    """
    try:
        with file.open() as stream:
            lines = (stream.readline(MAX_FIRST_LINE) for _ in range(MAX_BLANK))
            line = next((line for line in lines if not line.isspace()), b"")
    except READ_ERRORS as error:
        raise file.unreadable(error) from error
    return line.decode("utf-8-sig", "replace").rstrip("\r\n")


def read_header(file: DataFile, delimiter: str) -> list[str]:
    """Returns the names of a CSV file's columns; none if it is empty.

    Raises:
        DataFault: it can't be read, or is no CSV file.
    """
    from dprecipe.data.sources.read_csv import CsvLines, split_rows

    try:
        with file.open() as stream:
            row = next(split_rows(CsvLines(stream, file, Problems(private=True)), delimiter), None)
    except READ_ERRORS as error:
        raise file.unreadable(error) from error
    return [] if row is None else normalise_texts(row[1])


def guess_delimiter(file: DataFile, names: tuple[str, ...]) -> str:
    """Returns the delimiter of the header line: a comma, unless only another one shows a column of these names."""
    try:
        fields = next(csv.reader([read_first_line(file)]), [])
    except csv.Error:
        return ","  # reading the file says what is wrong
    if any(map(Header(fields).places, names)):
        return ","
    return find_delimiter(fields, names, ",") or ","
