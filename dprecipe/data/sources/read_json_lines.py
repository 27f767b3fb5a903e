"""`json_lines`: one JSON object a line in UTF-8 (RFC 8259, https://jsonlines.org), plain or gzipped.

Strict, and bounded: a line has at most `MAX_LINE_BYTES` bytes, a key stands once in an object, NaN and infinity are no
numbers, and every object has every column, null where a value is missing. Only columns of `kind: chat` hold lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

from dprecipe.data.encoders import ColumnReport
from dprecipe.data.files import DataFile, name_files
from dprecipe.data.problems import Problems
from dprecipe.data.raw import Raw, Reading
from dprecipe.data.sources.row_selection import RowLimit, RowSelection, RowSink, select_records
from dprecipe.data.sources.tables import AnyJsonLines
from dprecipe.data.values import Value
from dprecipe.data.words import Header, wrong_format_fault
from dprecipe.text.spelling import normalise_texts

CHUNK_ROWS = 2048
CHUNK_BYTES = 16 << 20
MAX_LINE_BYTES = 4 << 20
MAX_DEPTH = 64
"""Objects and lists within each other."""
BYTE_ORDER_MARKS = re.compile(rb"\A(?:\xef\xbb\xbf)+")
EXPECTED = "a file of one JSON object a line"
EMPTY = "has no line"
WRITE = "write one JSON object on each line, such as json.dumps writes it"
NO_OBJECT = "a line is no JSON object in UTF-8 (one on each line, no key twice, no NaN)"


def read(source: AnyJsonLines, root: Path, reading: Reading) -> Raw:
    """Returns the selected records of all files, one after the other, encoded; texts of `reading.name_column`.

    Lines before `records` are skipped and not parsed; lines after it, and beyond the declared number, are not read.

    Raises:
        DataFault: a file is missing, damaged, or not what the recipe declares, or there are too many lines.
    """
    files, collector, rows = select_records(source, root, reading)
    naming = frozenset(reading.naming_columns)
    read_file = partial(_read_file, problems=reading.problems, chats=collector.chats, naming=naming)
    rows.read(files, read_file, EMPTY)
    reading.span(source.records, rows.total, name_files(files))
    return collector.raw()


def read_objects(file: DataFile, sink: RowSink, limit: RowLimit, problems: Problems) -> None:
    """Hands all objects of a file to a sink, as rows.

    Raises:
        DataFault: the file is damaged or holds other lines, there is none, or there are more than the limit.
    """
    RowSelection(sink, (0, None), limit, problems).read([file], partial(_read_file, problems=problems), EMPTY)


def _read_file(
    file: DataFile,
    rows: RowSelection,
    problems: Problems,
    chats: frozenset[str] = frozenset(),
    naming: frozenset[str] = frozenset(),
) -> None:
    with file.open() as stream:
        _ObjectLines(file, rows.sink, problems, chats, naming).add(read_lines(stream, file, problems), rows)


def read_lines(stream: Any, file: DataFile, problems: Problems) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file that are not blank, each with its number."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        other = wrong_format_fault(file, line, EXPECTED, problems.finished) if number == 0 else None
        if other is not None:
            raise other
        number += 1
        if len(line) > MAX_LINE_BYTES:
            place = file.at(f"line {number}")
            raise problems.stop(
                problems.fault(file.name, f"a line is longer than {MAX_LINE_BYTES:,} bytes", "shorten it", place)
            )
        line = BYTE_ORDER_MARKS.sub(b"", line) if number == 1 else line
        if not line.isspace():
            yield number, line


@final
class _ObjectLines:
    """The objects of one file, a chunk at a time."""

    def __init__(
        self, file: DataFile, sink: RowSink, problems: Problems, chats: frozenset[str], naming: frozenset[str]
    ) -> None:
        """`chats`: the columns that hold conversations; `naming`: those that name units, records or sides."""
        self._file, self._sink, self._problems = file, sink, problems
        self._chats, self._naming = chats, naming
        self._numbers: list[int] = []
        self._objects: list[dict[str, Any]] = []

    def add(self, lines: Iterator[tuple[int, bytes]], rows: RowSelection) -> None:
        """Hands the selected lines to the sink.

        Raises:
            DataFault: a line is no object; there are more records than declared.
        """
        size = 0
        for number, line in lines:
            part = rows.count(1)
            if part.start < part.stop:
                self._numbers.append(number)
                self._objects.append(parse_line(line, number, self._file, self._problems))
                size += len(line)
            if len(self._objects) == CHUNK_ROWS or size > CHUNK_BYTES:
                self._collect()
                size = 0
            if rows.ended:
                break
        self._collect()

    def _collect(self) -> None:
        numbers, objects = self._numbers, self._objects
        self._numbers, self._objects = [], []
        if objects:
            columns = {name: self._column(name, objects, numbers) for name in self._sink.names}
            self._sink.add(columns, len(objects), lambda row: self._file.where(f"line {numbers[row]}"))

    def _column(self, name: str, objects: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> list[Value]:
        report = ColumnReport(name, lambda row: self._file.where(f"line {numbers[row]}"), self._problems)
        is_chat, is_name = name in self._chats, name in self._naming
        values: list[Value] = []
        for row, fields in enumerate(objects):
            value = fields.get(name)
            if name not in fields:
                report.add(
                    row, "a line has no such key" + _suggest(name, fields), "write null where a value is missing"
                )
            elif is_name and isinstance(value, float | bool):
                report.add(row, "units or records are named by texts or whole numbers", "write the name as a text")
            if isinstance(value, list | dict):
                if not is_chat:
                    report.add(row, "a field holds a list or an object", "name a column of single values")
                value = json.dumps(value) if is_chat else None
            values.append(value)
        return values


def parse_line(line: bytes, number: int, file: DataFile, problems: Problems) -> dict[str, Any]:
    """Returns the object of a line of a file.

    Raises:
        DataFault: it is none; see `parse_object`.
    """
    try:
        return parse_object(line)
    except ValueError:
        place = file.at(f"line {number}")
        raise problems.stop(problems.fault(file.name, NO_OBJECT, WRITE, place)) from None


def parse_object(line: bytes) -> dict[str, Any]:
    """Returns the object of a line, by its normalised keys.

    Raises:
        ValueError: it is none, or no JSON in UTF-8; a key stands twice; a number is none; it is nested too deeply.
    """
    text = line.decode("utf-8")
    if _depth(text) > MAX_DEPTH:
        raise ValueError("nested too deeply")
    value = json.loads(text, object_pairs_hook=_join_pairs, parse_constant=_refuse_constant)
    if not isinstance(value, dict):
        raise ValueError("no object")
    keys = list(value)
    normalised = normalise_texts(keys)
    return value if normalised == keys else _join_pairs(list(zip(normalised, value.values(), strict=True)))


STRINGS = re.compile(r'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)
"""Texts, also one without its end: a search that failed at each quote of a long line would never come to its end."""


def _depth(text: str) -> int:
    """Returns the greatest depth to which objects and lists are nested; brackets within texts do not count."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for letter in STRINGS.sub("", text):
        depth += (letter in "[{") - (letter in "]}")
        deepest = max(deepest, depth)
    return deepest


def _join_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    joined = dict(pairs)
    if len(joined) != len(pairs):
        raise ValueError("a key stands twice")
    return joined


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _suggest(name: str, fields: Mapping[str, Any]) -> str:
    """Returns a key that was meant, if one is nearly equal; the others may be of a record."""
    meant = Header(list(fields)).nearest(name)
    return f" (it has {meant!r})" if meant else ""
