"""The columns of a sample file, as texts: what a draft of a recipe is made from. CSV, JSON lines, Parquet and
NumPy archives, through the readers of a run."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, final

import numpy as np

from dprecipe.data.archive import open_archive
from dprecipe.data.files import READ_ERRORS, DataFile
from dprecipe.data.problems import Problems
from dprecipe.data.sample import ROW_NUMBERS, are_numbered
from dprecipe.data.sources.read_csv import CsvLines, split_rows
from dprecipe.data.sources.read_json_lines import parse_line, read_lines
from dprecipe.data.values import MAX_VALUE_BYTES, parse_number, text_of, texts_of
from dprecipe.data.words import DELIMITERS, wrong_format_fault
from dprecipe.libraries import importing_libraries
from dprecipe.text.spelling import normalise_texts

MAX_ROWS = 100_000
"""Rows of a public sample that are looked at; of a private file, `PRIVATE_ROWS`, for kinds alone."""
PRIVATE_ROWS = 100
MAX_COLUMNS = 2_000
MAX_FIELDS = 50_000_000
MAX_BYTES = 256 << 20
"""Limits of a sample: columns, fields, and the bytes of its texts, at which reading ends."""
MAX_COUNTED = 5_000_000
"""Rows of a public sample that are counted."""
MAX_HEADER = 1 << 20
SAVE = "save it with numpy.savez_compressed(path, features=…, labels=…)"
UNNAMED = "it has no name"
TWICE = "its name stands twice in the header line"
NO_VALUES = "its values are no numbers, dates or texts"
FORMATS = "expected a table (CSV, JSON lines, Parquet) or a NumPy archive"


@final
@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns' fields as normalised texts, of all rows or of the first ones (`cut`).

    `rows`: how many the file has; of a private file, and of one with more than `MAX_COUNTED`, those that were read.
    """

    source: Literal["csv", "json_lines", "parquet"]
    columns: dict[str, list[str]]
    rows: int
    cut: bool
    delimiter: str = ","
    left_out: dict[str, str] = field(default_factory=dict)
    """Columns that can't be features, each with the reason."""
    typed: dict[str, Literal["date", "boolean"]] = field(default_factory=dict)
    """Columns whose own type, and no text, says what they hold."""


@final
@dataclass(frozen=True, slots=True)
class Arrays:
    """An archive: the shape and type of each array, and the values of those with one number or text a record."""

    shapes: dict[str, tuple[int, ...]]
    values: dict[str, list[str]]


def read_sample(file: DataFile, max_rows: int = MAX_ROWS) -> Table | Arrays:
    """Returns the columns of a file, of at most `max_rows` rows; of an archive names and shapes alone, where these are
    `PRIVATE_ROWS`.

    Raises:
        DataFault: it is not there, damaged, or none of the formats.
    """
    path = file.path
    if path.is_dir():
        raise file.fault(
            "is a folder",
            "name its files by a pattern in quotes, such as 'folder/**/*.parquet'",
        )
    if not path.is_file():
        raise file.fault("there is no such file", "check the spelling of the path")
    problems = Problems(private=max_rows <= PRIVATE_ROWS)
    with file.open() as stream:
        start = stream.read(16)
    text = start.removeprefix(b"\xef\xbb\xbf")
    if not text:
        raise file.fault("is empty", "name a file with a header line and rows")
    if start.startswith(b"PAR1"):
        return _read_parquet(file, max_rows)
    if start.startswith(b"PK\x03\x04") and not _is_workbook(path):
        if file.place != file.name:  # a message about an archive names its file, which may be private
            raise file.fault("matches archives", "name one of them by its path")
        return _read_archive(path, max_rows)
    if start.startswith(b"\x93NUM"):
        raise file.fault("is a single NumPy array", SAVE)
    other = wrong_format_fault(file, start, FORMATS.removeprefix("expected "))
    if other is not None:
        raise other
    if text.startswith(b"[") and text[1:].lstrip()[:1] in (b"", b"{", b"["):  # and not a column named [a]
        raise file.fault("begins as a JSON array", "write its objects one a line, without [ and ]")
    try:
        if text.lstrip().startswith(b"{"):
            return _read_json_lines(file, max_rows, problems)
        return _read_csv(file, max_rows, problems)
    except READ_ERRORS as error:
        raise file.unreadable(error) from error


def read_samples(files: Sequence[DataFile], max_rows: int = MAX_ROWS) -> Table | Arrays:
    """Returns the columns of the files of one table, of at most `max_rows` rows; of private files, those of the first.

    Raises:
        DataFault: see `read_sample`; the files are not of one table.
    """
    whole = read_sample(files[0], max_rows)
    if isinstance(whole, Arrays) or max_rows <= PRIVATE_ROWS:
        return whole
    is_counted = _is_counted(whole, max_rows)
    for file in files[1:]:
        part = read_sample(file, max_rows)
        if isinstance(part, Arrays) or _identify(part) != _identify(whole):
            raise file.fault("has another format or other columns than a file before it", "name files of one table")
        taken = len(next(iter(whole.columns.values()), ()))
        is_full = sum(len(text) for texts in whole.columns.values() for text in texts) > MAX_BYTES
        more = 0 if is_full else max_rows - taken
        is_counted = is_counted and _is_counted(part, max_rows)
        rows = whole.rows + part.rows if is_counted else max_rows + 1
        whole = replace(
            whole,
            columns={name: texts + part.columns[name][:more] for name, texts in whole.columns.items()},
            rows=rows,
            cut=whole.cut or part.cut or part.rows > more,
            typed=dict(whole.typed.items() & part.typed.items()),
        )
    return whole


def _identify(table: Table) -> tuple[object, ...]:
    return table.source, table.delimiter, set(table.columns), set(table.left_out)


def _is_counted(table: Table, max_rows: int) -> bool:
    """Returns False for a file with more rows than are counted."""
    return not table.cut or table.rows > max_rows + 1


def _is_workbook(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return "[Content_Types].xml" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _read_csv(file: DataFile, max_rows: int, problems: Problems) -> Table:
    delimiter = _find_delimiter(file)
    with file.open() as stream:
        rows = split_rows(CsvLines(stream, file, problems), delimiter)
        header = normalise_texts(next(rows, (0, []))[1])
        stands = _count_names(header, file)
        fields = list(_take(((row, sum(map(len, row))) for _, row in rows), max_rows + 1))
        more = _count_rest(rows, max_rows)
    if not fields:
        raise file.fault("has a header line and no record", "name a file with rows")
    if len(header) == 1 and len(header[0].split()) > 1 and len(fields[0][0].split()) == len(header[0].split()):
        raise file.fault("its fields are separated by blanks", "save it as CSV, with commas between the fields")
    named = [name for name in header if name]
    if named and all(parse_number(name) is not None for name in named):
        raise file.fault(
            "its first line holds numbers, where the names of the columns should be", "write a header line"
        )
    over, fields = len(fields) > max_rows, fields[:max_rows]
    columns: dict[str, list[str]] = {}
    left_out: dict[str, str] = {}
    for place, name in enumerate(header):
        texts = normalise_texts([row[place] for row in fields])
        if not name:
            left_out[name] = ROW_NUMBERS if place == 0 and are_numbered(texts) else UNNAMED
        elif stands[name] > 1:
            left_out[name] = TWICE
        else:
            columns[name] = texts
    return Table("csv", columns, len(fields) + over + more, over or more > 0, delimiter, left_out)


def _count_rest(rows: Iterator[object], max_rows: int) -> int:
    """Returns how many rows follow those that were read; 0 where they are not counted."""
    if max_rows <= PRIVATE_ROWS:
        return 0
    count = sum(1 for _ in islice(rows, MAX_COUNTED))
    return count if count < MAX_COUNTED else 0


def _find_delimiter(file: DataFile) -> str:
    """Returns the delimiter that the first line with any text has most often, outside of quotes; by default a comma."""
    with file.open() as stream:
        line = b""
        while not line.strip() and (line := stream.readline(MAX_HEADER)):
            pass
    plain = "".join(line.decode("utf-8", "replace").split('"')[::2])
    return max(DELIMITERS, key=plain.count) if any(map(plain.count, DELIMITERS)) else ","


def _count_names(names: Sequence[str], file: DataFile) -> Counter[str]:
    """Counts how often each name stands in a header.

    Raises:
        DataFault: there are more than `MAX_COLUMNS`.
    """
    if len(names) > MAX_COLUMNS:
        raise file.fault(f"has more than {MAX_COLUMNS:,} columns", "choose those that are to be learned from")
    return Counter(names)


Item = TypeVar("Item")


def _take(items: Iterator[tuple[Item, int]], count: int) -> Iterator[Item]:
    """Yields items, each given with its size, up to a count and to `MAX_BYTES` together."""
    size = 0
    for item, length in islice(items, count):
        size += length
        yield item
        if size > MAX_BYTES:
            return


def _read_json_lines(file: DataFile, max_rows: int, problems: Problems) -> Table:
    with file.open() as stream:
        lines = ((line, len(line[1])) for line in read_lines(stream, file, problems))
        rows: list[dict[str, Any]] = []
        names: dict[str, None] = {}
        for number, line in _take(lines, max_rows + 1):
            rows.append(parse_line(line, number, file, problems))
            names |= dict.fromkeys(rows[-1])
            if len(names) > MAX_COLUMNS or len(names) * len(rows) > MAX_FIELDS:
                raise file.fault(f"has more than {MAX_COLUMNS:,} different keys", "write the same keys in each line")
        more = _count_rest(read_lines(stream, file, problems), max_rows)
    over, rows = len(rows) > max_rows, rows[:max_rows]
    nested = [name for name in names if any(isinstance(row.get(name), list | dict) for row in rows)]
    columns = {name: [text_of(row.get(name)) for row in rows] for name in names if name not in nested}
    return Table(
        "json_lines", columns, len(rows) + over + more, over or more > 0, left_out=dict.fromkeys(nested, NO_VALUES)
    )


def _read_parquet(file: DataFile, max_rows: int) -> Table:
    with importing_libraries("a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        from dprecipe.data.arrow import ColumnTypes, column_values, holds_values, name_kind
        from dprecipe.data.sources.read_parquet import ParquetShards

    shards = ParquetShards()
    try:
        with pq.ParquetFile(file.path) as table:
            schema = table.schema_arrow
        stands = _count_names(schema.names, file)
        left_out = {one.name: NO_VALUES for one in schema if not holds_values(one.type)}
        left_out |= {name: ROW_NUMBERS for name in schema.names if name.startswith("__index_level_")}
        left_out |= {name: TWICE for name, count in stands.items() if count > 1}
        names = tuple(name for name in schema.names if name not in left_out)
        typed = {name: kind for name in names if (kind := name_kind(schema.field(name).type)) is not None}
        total = shards.count_rows(file, names, ColumnTypes())
        columns: dict[str, list[str]] = {name: [] for name in names}
        rows = size = 0
        for _, batch in shards.batches(file, slice(0, max_rows), names, MAX_VALUE_BYTES):
            for name in names:
                columns[name] += texts_of(column_values(batch.column(name), name, file))
            rows += batch.num_rows
            size += batch.nbytes
            if size > MAX_BYTES:
                break
        return Table("parquet", columns, total, total > rows, left_out=left_out, typed=typed)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise file.unreadable(error if isinstance(error, OSError) else ValueError()) from error


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
