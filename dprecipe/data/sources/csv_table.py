"""`csv`: a table in UTF-8 with a header line (RFC 4180), plain or gzipped, read a chunk at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dprecipe.data.files import READ_ERRORS, locate, opened, unreadable
from dprecipe.data.raw import Raw, span
from dprecipe.data.schema import Csv, Data, PublicCsv
from dprecipe.data.table import Collector
from dprecipe.faults import DataFault

CHUNK_ROWS = 2048
LONGEST_LINE = 1 << 20
Row = tuple[int, list[str]]
"""A row's fields, and the line of the file on which it begins."""


def read(source: Csv | PublicCsv, data: Data, root: Path, name_column: str | None) -> Raw:
    """The selected records, encoded: features (N, D) float32, and the texts of `name_column`.

    Rows before `records` are split into fields but not looked at; rows after it are not read. Blank lines are
    passed over.

    Raises:
        DataFault: the file is missing, damaged, or a row is not what the recipe declares; names line and
        column.
    """
    file = locate(source.path, root)
    label = source.label if isinstance(source, Csv) else None
    collector = Collector(source.columns, data.preprocess, label, name_column)
    first, end = source.records if source.records is not None else (0, None)
    total = 0
    try:
        with opened(file) as stream:
            rows = _rows(stream, file, source.delimiter)
            positions = _positions(next(rows, (1, []))[1], collector.names, file)
            chunk: list[Row] = []
            for row in rows:
                if total == end:
                    break
                total += 1
                if total > first:
                    chunk.append(row)
                if len(chunk) == CHUNK_ROWS:
                    _collect(collector, chunk, positions, file)
                    chunk = []
            _collect(collector, chunk, positions, file)
    except READ_ERRORS as error:
        raise unreadable(file, error) from error
    span(source.records, total, file.name)
    return collector.raw()


def _collect(collector: Collector, chunk: list[Row], positions: dict[str, int], file: Path) -> None:
    columns = {name: [fields[position] for _, fields in chunk] for name, position in positions.items()}
    collector.add(columns, len(chunk), lambda row: f"{file.name}, line {chunk[row][0]}")


def _rows(stream: BinaryIO, file: Path, delimiter: str) -> Iterator[Row]:
    """The header and the rows, each with as many fields as the header."""
    reader = csv.reader(_lines(stream, file), delimiter=delimiter, strict=True)
    width: int | None = None
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise DataFault(
                f"{file.name}, line {line}: is not well-formed CSV (a quote that does not close, "
                f"text after a closing "
                f"quote, or a field of more than {csv.field_size_limit()} characters)",
                'enclose a field that holds quotes or line breaks in "…", and double the quotes in it',
            ) from error
        if fields is None:
            return
        if not fields:
            continue
        width = len(fields) if width is None else width
        if len(fields) != width:
            raise DataFault(
                f"{file.name}, line {line}: has {len(fields)} fields, the header line has {width}",
                "mend the row (a delimiter inside a field that is not quoted?), or declare the right `delimiter`",
            )
        yield line, fields


def _lines(stream: BinaryIO, file: Path) -> Iterator[str]:
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DataFault(f"{file.name}, line {number}: is longer than {LONGEST_LINE} bytes", "is this a CSV file?")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataFault(
                f"{file.name}, line {number}: is not UTF-8 (byte {error.start + 1} of the line)",
                "convert the file to UTF-8",
            ) from error


def _positions(header: list[str], names: tuple[str, ...], file: Path) -> dict[str, int]:
    """Where each named column is. The header is not cited: in a file without one it is somebody's record."""
    stripped = [name.strip() for name in header]
    for name in names:
        count = stripped.count(name.strip())
        if count != 1:
            raise DataFault(
                f"{file.name}: column {name!r} "
                + ("is not in the header line" if count == 0 else f"is {count} times in the header line"),
                "the first line has to name each column once; check the spelling and the `delimiter`",
            )
    return {name: stripped.index(name.strip()) for name in names}
