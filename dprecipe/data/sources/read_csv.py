"""`csv`: a table in UTF-8 with a header line (RFC 4180), plain or gzipped, read a chunk at a time.

At most as many records are read as the recipe declares, and a row has at most `MAX_ROW_BYTES` bytes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, final

from dprecipe.data.files import DataFile, name_files
from dprecipe.data.problems import Problems
from dprecipe.data.raw import Raw, Reading
from dprecipe.data.sources.csv_blocks import BLOCK_BYTES, BlockSplitter, read_lines
from dprecipe.data.sources.row_selection import RowLimit, RowSelection, RowSink, select_records
from dprecipe.data.sources.tables import AnyCsv
from dprecipe.data.words import DELIMITERS, Header, describe_rename, find_delimiter, wrong_format_fault
from dprecipe.faults import DataFault
from dprecipe.libraries import is_installed
from dprecipe.text.spelling import normalise_texts

CHUNK_ROWS = 2048
CHUNK_BYTES = 16 << 20
MAX_LINE_BYTES = 1 << 20
MAX_ROW_BYTES = 4 << 20
MAX_BLANK = 100_000
"""Blank lines that are skipped."""
EXPECTED = "a CSV file"
EMPTY = "has a header line and no record"


Row = tuple[int, list[str]]
"""A row's fields, and the line of the file on which it begins."""


def read(source: AnyCsv, root: Path, reading: Reading) -> Raw:
    """Returns the selected records of all files, one after the other, encoded: features (N, D) float32, and the texts
    of `reading.name_column`.

    Rows before `records` are split into fields but not checked; rows after it, and rows beyond the declared number, are
    not read. Blank lines are skipped. All problems with fields are collected before one fault reports them.

    Raises:
        DataFault: a file is missing, damaged, or not what the recipe declares, or there are too many rows.
    """
    files, collector, rows = select_records(source, root, reading)
    rows.read(files, partial(_read_file, delimiter=source.delimiter, problems=reading.problems), EMPTY)
    reading.span(source.records, rows.total, name_files(files))
    return collector.raw()


def read_rows(file: DataFile, sink: RowSink, delimiter: str, limit: RowLimit, problems: Problems) -> None:
    """Hands all rows of a file to a sink.

    Raises:
        DataFault: the file is damaged or no such table, there is no row, or there are more than the limit.
    """
    rows = RowSelection(sink, (0, None), limit, problems)
    rows.read([file], partial(_read_file, delimiter=delimiter, problems=problems), EMPTY)


def _read_file(file: DataFile, rows: RowSelection, delimiter: str, problems: Problems) -> None:
    with file.open() as stream:
        lines = CsvLines(stream, file, problems)
        header = next(split_rows(lines, delimiter), None)
        positions = _positions(header, rows.sink.names, delimiter, file, problems.finished)
        width = 0 if header is None else len(header[1])
        _add_blocks(rows, lines, delimiter, width, positions)
        _add_rows(rows, lines, delimiter, width, positions)


def _add_blocks(rows: RowSelection, lines: CsvLines, delimiter: str, width: int, positions: dict[str, int]) -> None:
    """Adds blocks of plain lines, as long as they come, and pyarrow is there to split them."""
    can_split = is_installed("pyarrow")
    splitter = BlockSplitter(delimiter, width, positions, rows.sink.numeric)
    while not rows.ended:
        content = lines.take()
        worth_it = can_split and (len(content) >= BLOCK_BYTES or (content and lines.number > 1))
        block = splitter.split(content) if worth_it else None
        if block is None:
            lines.put_back(content)
            return
        first, part = lines.number + 1, rows.count(block.rows)
        lines.number += block.rows
        if part.start < part.stop:
            columns = {name: values[part] for name, values in block.columns.items()}
            rows.sink.add(columns, part.stop - part.start, partial(_line_after, lines.file, first + part.start))


def _add_rows(rows: RowSelection, lines: CsvLines, delimiter: str, width: int, positions: dict[str, int]) -> None:
    """Adds rows one by one."""
    chunk: list[Row] = []
    for row in split_rows(lines, delimiter, width):
        if rows.ended:
            break
        part = rows.count(1)
        if part.start < part.stop:
            chunk.append(row)
        if len(chunk) == CHUNK_ROWS or lines.since > CHUNK_BYTES:
            _collect(rows.sink, chunk, positions, lines.file)
            chunk, lines.since = [], 0
    _collect(rows.sink, chunk, positions, lines.file)


def _line_after(file: DataFile, first: int, row: int) -> str:
    return file.where(f"line {first + row}")


def _collect(sink: RowSink, chunk: list[Row], positions: dict[str, int], file: DataFile) -> None:
    fields = list(zip(*(fields for _, fields in chunk), strict=True))
    columns = {name: fields[position] if chunk else () for name, position in positions.items()}
    sink.add(columns, len(chunk), lambda row: file.where(f"line {chunk[row][0]}"))


@final
class CsvLines:
    """The lines of a file as text; `row` counts the bytes of the current row, `since` those of the chunk."""

    def __init__(self, stream: BinaryIO, file: DataFile, problems: Problems) -> None:
        self._stream, self.file, self._problems = stream, file, problems
        self._back = io.BytesIO()
        self.number = self.row = self.since = 0
        self.has_bare_returns = False
        """True if the current line holds a carriage return that no line feed follows."""

    @property
    def finished(self) -> bool:
        """See `problems.Problems`."""
        return self._problems.finished

    def fault(self, line: int, problem: str, remedy: str) -> DataFault:
        return self._problems.stop(self._problems.fault(self.file.name, problem, remedy, self.file.at(f"line {line}")))

    def take(self) -> bytes:
        """Returns the next lines, not looked at."""
        return read_lines(self._stream, MAX_LINE_BYTES)

    def put_back(self, content: bytes) -> None:
        """Lines that come next."""
        self._back = io.BytesIO(content)

    def __iter__(self) -> Iterator[str]:
        while line := self._back.readline(MAX_LINE_BYTES + 1) or self._stream.readline(MAX_LINE_BYTES + 1):
            if self.number == 0:
                other = wrong_format_fault(self.file, line, EXPECTED, self.finished)
                if other is not None:
                    raise other
            self.number += 1
            self.row += len(line)
            self.since += len(line)
            self.has_bare_returns = b"\r" in line.rstrip(b"\r\n")
            if len(line) > MAX_LINE_BYTES or self.row > MAX_ROW_BYTES:
                limit = f"{MAX_LINE_BYTES:,} bytes" if len(line) > MAX_LINE_BYTES else f"{MAX_ROW_BYTES:,} bytes"
                raise self.fault(self.number, f"a line or a row is longer than {limit}", "is this a CSV file?")
            if b"\0" in line:
                raise self.fault(
                    self.number, "a line contains a zero byte, which text never does", "is this a CSV file?"
                )
            try:
                text = line.decode("utf-8")
                yield text.lstrip("\ufeff") if self.number == 1 else text
            except UnicodeDecodeError as error:
                raise self.fault(
                    self.number,
                    "a line is not UTF-8",
                    "convert the file to UTF-8 (from a spreadsheet: save as CSV UTF-8)",
                ) from error


def split_rows(lines: CsvLines, delimiter: str, width: int | None = None) -> Iterator[Row]:
    """Yields the header and the rows, each with as many fields as the header; or rows alone, with `width` fields."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    before, blank = lines.number, 0
    while True:
        line, lines.row = before + reader.line_num + 1, 0
        try:
            fields = next(reader, None)
        except csv.Error as error:
            if lines.has_bare_returns:
                raise lines.fault(
                    line, "lines end in a carriage return alone", "save the file with the line ends of today (LF)"
                ) from error
            raise lines.fault(
                line,
                "a row is not well-formed CSV (a quote that does not close, text after a closing quote, or a field of "
                f"more than {csv.field_size_limit()} characters)",
                'enclose a field that contains quotes or line breaks in "…", and double the quotes in it',
            ) from error
        if fields is None:
            return
        if not fields:
            blank += 1
            if blank > MAX_BLANK:
                raise lines.fault(line, f"there are more than {MAX_BLANK:,} blank lines", "remove them")
            continue
        width = len(fields) if width is None else width
        if len(fields) != width:
            raise lines.fault(
                line,
                f"a row has {'fewer' if len(fields) < width else 'more'} fields than the header line",
                "correct the row (an unquoted field that contains a delimiter?), or "
                + ("name the delimiter: --delimiter" if lines.finished else "declare the right `delimiter`"),
            )
        yield line, fields


def _positions(
    header: Row | None, names: tuple[str, ...], delimiter: str, file: DataFile, finished: bool
) -> dict[str, int]:
    """Returns the position of each named column. Only header names that nearly equal a declared one are quoted: in a
    file without a header, the first line is a private record. `finished`: see `problems.Problems`.
    """
    if header is None:
        raise file.fault("is empty", "name another file: a CSV file begins with a header line")
    present = normalise_texts(header[1])
    known = Header(present)
    absent = [name for name in names if not known.places(name)]
    twice = [name for name in names if len(known.places(name)) > 1]
    if len(absent) == len(names):
        other = find_delimiter(present, names, delimiter)
        if other is not None:
            written = '"\\t"' if other == "\t" else f'"{other}"'
            expected = "and read as if by" if finished else "the recipe expects"
            raise file.fault(
                f"its fields are separated by {DELIMITERS[other]}, {expected} "
                f"{DELIMITERS.get(delimiter, repr(delimiter))}",
                f"name it: --delimiter {written}" if finished else f"add `delimiter: {written}` beside the path",
            )
    if absent:
        meant = {name: known.nearest(name) for name in absent}
        results = [f"{name!r} (the file has {other!r})" for name, other in meant.items() if other is not None]
        missing = [repr(name) for name, other in meant.items() if other is None]
        described = ", ".join(results + missing)
        remedy = "write the names in the recipe as the file has them" if results else "check the spelling in the recipe"
        if finished:
            remedy = describe_rename(bool(results), len(absent))
        if len(missing) == len(names):
            remedy = "does the file begin with a header line? The first line must name the columns"
            remedy += f" that the release reads: {', '.join(missing)}" if finished else ""
        is_are = "column {} is" if len(absent) == 1 else "columns {} are"
        raise file.fault(f"{is_are.format(described)} not in the header line", remedy)
    if twice:
        raise file.fault(
            f"column {twice[0]!r} is {len(known.places(twice[0]))} times in the header line",
            "name each column once in the file",
        )
    return {name: known.places(name)[0] for name in names}
