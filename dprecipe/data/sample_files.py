"""The columns of a sample file, as texts: what a draft of a recipe is made from. CSV, JSON lines, Parquet and
NumPy archives."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from dprecipe.data.archive import open_archive
from dprecipe.data.files import READ_ERRORS, open_file, unreadable_fault
from dprecipe.data.sources.read_json_lines import MAX_LINE_BYTES, parse_object
from dprecipe.data.values import text_of
from dprecipe.data.words import DELIMITERS
from dprecipe.faults import DataFault
from dprecipe.libraries import importing_libraries
from dprecipe.text.spelling import normalise_texts

MAX_ROWS = 100_000
"""Rows of a public sample that are looked at; of a private file, `PRIVATE_ROWS`, for kinds alone."""
PRIVATE_ROWS = 100
MAX_HEADER = 1 << 20
QUOTES = 'enclose a field that contains quotes or line breaks in "…", and double the quotes in it'
SAVE = "save it with numpy.savez_compressed(path, features=…, labels=…)"


@final
@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns' fields as texts without blanks around them, of `rows` rows; `cut`: the file has more."""

    source: Literal["csv", "json_lines", "parquet"]
    columns: dict[str, list[str]]
    rows: int
    cut: bool
    delimiter: str = ","
    left_out: tuple[str, ...] = ()
    """Columns that are no numbers, truth values, dates or texts."""


@final
@dataclass(frozen=True, slots=True)
class Arrays:
    """An archive: the shape and type of each array, and the values of those with one number or text a record."""

    shapes: dict[str, tuple[int, ...]]
    values: dict[str, list[str]]


def read_sample(file: Path, max_rows: int = MAX_ROWS) -> Table | Arrays:
    """Returns the columns of a file, of at most `max_rows` rows; of an archive names and shapes alone, where these are
    `PRIVATE_ROWS`.

    Raises:
        DataFault: it is not there, damaged, or none of the formats.
    """
    if file.is_dir():
        raise DataFault(f"{file}: is a folder", "name one of its files")
    if not file.is_file():
        raise DataFault(f"{file}: there is no such file", "check the spelling of the path")
    with open_file(file) as stream:
        start = stream.read(4)
    text = start.removeprefix(b"\xef\xbb\xbf")
    if not text:
        raise DataFault(f"{file.name}: is empty", "name a file with a header line and rows")
    if start == b"PAR1":
        return _read_parquet(file, max_rows)
    if start == b"PK\x03\x04":
        return _read_archive(file, max_rows)
    if start == b"\x93NUM":
        raise DataFault(f"{file.name}: is a single NumPy array", SAVE)
    if text.startswith(b"[") and text[1:].lstrip()[:1] in (b"", b"{", b"["):  # and not a column named [a]
        raise DataFault(f"{file.name}: begins as a JSON array", "write its objects one a line, without [ and ]")
    if text.startswith(b"{"):
        return _read_json_lines(file, max_rows)
    return _read_csv(file, max_rows)


def _read_csv(file: Path, max_rows: int) -> Table:
    try:
        with open_file(file) as stream:
            line = stream.readline(MAX_HEADER).decode("utf-8-sig")
        delimiter = max(DELIMITERS, key=line.count) if any(map(line.count, DELIMITERS)) else ","
        with open_file(file) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
            rows = csv.reader(text, delimiter=delimiter, strict=True)
            header = normalise_texts(next(rows, []))
            fields = list(_take_rows(rows, len(header), max_rows + 1, file))
    except UnicodeDecodeError as error:
        raise DataFault(f"{file.name}: is not a CSV file in UTF-8", "save it as CSV UTF-8, or as Parquet") from error
    except csv.Error as error:
        raise DataFault(f"{file.name}: a row is not well-formed CSV", QUOTES) from error
    except READ_ERRORS as error:
        raise unreadable_fault(file, error) from error
    if len(set(header)) != len(header) or not all(header):
        raise DataFault(f"{file.name}: its header line has an empty name, or one twice", "name each column once")
    cut, fields = len(fields) > max_rows, fields[:max_rows]
    columns = {name: [row[place].strip() for row in fields] for place, name in enumerate(header)}
    return Table("csv", columns, len(fields), cut, delimiter)


def _take_rows(rows: Iterator[list[str]], width: int, count: int, file: Path) -> Iterator[list[str]]:
    for row in rows:
        if not row:
            continue
        if len(row) != width:
            raise DataFault(f"{file.name}: a row has another number of fields than the header line", "mend the file")
        yield row
        count -= 1
        if count == 0:
            return


def _read_json_lines(file: Path, max_rows: int) -> Table:
    rows: list[dict[str, Any]] = []
    try:
        with open_file(file) as stream:
            while len(rows) <= max_rows and (line := stream.readline(MAX_LINE_BYTES + 1)):
                rows.append(parse_object(line if rows else line.removeprefix(b"\xef\xbb\xbf")))
    except ValueError:
        raise DataFault(
            f"{file.name}: is no file of one JSON object a line", "save it so, as CSV, or as Parquet"
        ) from None
    except READ_ERRORS as error:
        raise unreadable_fault(file, error) from error
    cut, rows = len(rows) > max_rows, rows[:max_rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    nested = [name for name in names if any(isinstance(row.get(name), list | dict) for row in rows)]
    columns = {name: [text_of(row.get(name)) for row in rows] for name in names if name not in nested}
    return Table("json_lines", columns, len(rows), cut, left_out=tuple(nested))


def _read_parquet(file: Path, max_rows: int) -> Table:
    with importing_libraries("a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq
        import pyarrow.types as types

    def is_plain(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_string)
        more = (types.is_large_string, types.is_date, types.is_timestamp, types.is_null)
        return any(test(kind) for test in (*tests, *more))

    try:
        with pq.ParquetFile(file) as table:
            schema = table.schema_arrow
            names = [one.name for one in schema if is_plain(one.type)]
            columns: dict[str, list[str]] = {name: [] for name in names}
            rows = 0
            for batch in table.iter_batches(batch_size=min(max_rows, 8192), columns=names):
                batch = batch.slice(0, max_rows - rows)
                for name in names:
                    columns[name] += list(map(text_of, _plain_values(batch.column(name))))
                rows += batch.num_rows
                if rows >= max_rows:
                    break
            left_out = tuple(one.name for one in schema if one.name not in columns)
            return Table("parquet", columns, rows, table.metadata.num_rows > rows, left_out=left_out)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable_fault(file, error if isinstance(error, OSError) else ValueError()) from error


def _plain_values(column: Any) -> Sequence[Any]:
    with importing_libraries("a Parquet file"):
        import pyarrow as pa
        import pyarrow.types as types

    if types.is_date(column.type) or types.is_timestamp(column.type):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    return ["" if value != value else value for value in values]  # NaN is a missing number


def _read_archive(file: Path, max_rows: int) -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {}
    values: dict[str, list[str]] = {}
    with open_archive(file, SAVE) as archive:
        for name in archive.names:
            dims = archive.dims(name, None, "numbers or texts", _is_plain)
            shapes[name] = dims[1:]
            if len(dims) == 1 and max_rows > PRIVATE_ROWS:
                part = slice(0, min(dims[0], max_rows))
                values[name] = list(map(text_of, archive.array(name, (), "numbers or texts", _is_plain, part).tolist()))
    return Arrays(shapes, values)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iufbU"
