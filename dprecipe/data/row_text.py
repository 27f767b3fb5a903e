"""Rows of a table as text, and back: a line `name: value` for each column, in a fixed order.

    label: spam
    text: You have won

The parser reads what a model has written, which may be anything. It is strict: it takes a text for a row only where
each field is one that the column's declaration allows.

| kind of column | as text | read back |
|---|---|---|
| `numeric`, `integer` | decimal digits; clamped to the declared range | a number within the range, float or int |
| `boolean` | the declared words, or `false` and `true` | one of the two words, as False or True |
| `ordinal`, `category` | a declared value | a declared value |
| `date` | ISO 8601: the day, and with part `hour` the time; clamped | a text in that form, within the range |
| `text` | on one line: `ESCAPES` stand for line breaks, tabs, backslashes | the text, if not empty, without controls |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import TypeAlias, final

import numpy as np

from dprecipe.data.columns import Boolean, Category, ColumnBlock, Columns, Date, Integer, Ordinal, Quantity, TextColumn
from dprecipe.data.counts import SourceCounts
from dprecipe.data.encoders import (
    ColumnReport,
    check_texts,
    has_half_letter,
    parse_dates,
    parse_quantity,
    parse_ranks,
    parse_truth,
)
from dprecipe.data.values import Values, number_texts, texts_of
from dprecipe.faults import InternalFault

MAX_ROW_TEXT = 1 << 17
"""Characters of a text that is read back."""
NUMBER = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,19})?(e[+-]?[0-9]{1,3})?", re.ASCII)
WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}", re.ASCII)
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
LETTERS = {escape: letter for letter, escape in ESCAPES.items()}
ESCAPED = str.maketrans(ESCAPES)
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

RowValue: TypeAlias = str | int | float | bool


class NoRow(ValueError):
    """A text is not a row of the table; the message says why, without quoting any of the text."""


@final
class RowText:
    """The writer and the parser of rows: of these columns, in this order."""

    def __init__(self, columns: Columns, names: Sequence[str]) -> None:
        """`columns`: those of the table. `names`: those of a row's text."""
        self._columns = {name: columns[name] for name in names}

    def write(
        self, chunk: Mapping[str, Values], rows: int, reports: Mapping[str, ColumnReport], counts: SourceCounts
    ) -> list[str | None]:
        """Returns the text of each row; None for one with a field that is none of what its column declares, which is
        reported. Values that are missing or clamped are counted.
        """
        lines = [
            _write_column(name, chunk[name], column, reports[name], counts) for name, column in self._columns.items()
        ]
        return [
            None if any(line is None for line in row) else "\n".join(line for line in row if line is not None)
            for row in (zip(*lines, strict=True) if rows else ())
        ]

    def parse(self, text: str) -> dict[str, RowValue]:
        """Returns the fields of a text that is exactly one row.

        Raises:
            NoRow: it is none.
        """
        if len(text) > MAX_ROW_TEXT:
            raise NoRow("it is longer than a row may be")
        lines = text.split("\n")
        if len(lines) != len(self._columns):
            raise NoRow("it has more or fewer lines than the row has columns")
        fields: dict[str, RowValue] = {}
        for line, (name, column) in zip(lines, self._columns.items(), strict=True):
            if not line.startswith(f"{name}: "):
                raise NoRow(f"the line of column {name!r} does not begin with its name")
            fields[name] = _parse_field(line[len(name) + 2 :], name, column)
        return fields


def _write_column(
    name: str, values: Values, column: ColumnBlock, report: ColumnReport, counts: SourceCounts
) -> list[str | None]:
    own = counts.column(name, column.kind)
    texts: Sequence[str | None]
    match column:
        case Quantity():
            numbers = np.clip(parse_quantity(values, column, report, own), *column.limits)
            texts = [_write_number(number) for number in numbers.tolist()]
        case Boolean():
            no, yes = _words(column)
            texts = [yes if answer else no for answer in parse_truth(texts_of(values), column, report, own).tolist()]
        case Ordinal():
            places = parse_ranks(values, column, report, own).astype(int).tolist()
            texts = [column.values[place] for place in places]
        case Date():
            texts = [_write_moment(moment, column) for moment in parse_dates(texts_of(values), column, report, own)]
        case Category():
            texts = _write_categories(values, column, report)
        case TextColumn():
            texts = [text if text is None else text.translate(ESCAPED) for text in check_texts(values, report)]
        case _:
            raise InternalFault(f"the text of a column of kind {column.kind}")
    return [None if text is None else f"{name}: {text}" for text in texts]


def _write_categories(values: Values, column: Category, report: ColumnReport) -> list[str | None]:
    declared = column.values
    numbers = number_texts(values, {value: number for number, value in enumerate(declared)}, -1).tolist()
    for row, number in enumerate(numbers):
        if number < 0:
            report.add(
                row,
                f"a field is not among the {len(declared)} declared values, and a row of text has no word for others",
                "declare every value that can occur (from domain knowledge), or correct the row",
            )
    return [None if number < 0 else declared[number] for number in numbers]


def _write_number(number: float) -> str:
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def _write_moment(moment: datetime, column: Date) -> str:
    day = min(max(moment.date(), column.min), column.max)
    return f"{day.isoformat()}T{moment:%H:%M}" if "hour" in column.parts else day.isoformat()


def _words(column: Boolean) -> tuple[str, str]:
    return ("false", "true") if column.values is None else (column.values[0], column.values[1])


def _parse_field(text: str, name: str, column: ColumnBlock) -> RowValue:
    value: RowValue | None = None
    match column:
        case Quantity():
            value = _parse_number(text, column)
        case Boolean():
            value = dict(zip(_words(column), (False, True), strict=True)).get(text)
        case Ordinal() | Category():
            value = text if text in column.values else None
        case Date():
            value = text if _is_moment(text, column) else None
        case TextColumn():
            value = _parse_text(text)
    if value is None:
        raise NoRow(f"the field of column {name!r} is no {column.kind} that is declared")
    return value


def _parse_number(text: str, column: Quantity) -> int | float | None:
    """Returns a number within the declared range; the range is finite, so it is."""
    is_whole = isinstance(column, Integer)
    if not (WHOLE if is_whole else NUMBER).fullmatch(text):
        return None
    number = int(text) if is_whole else float(text)
    return number if column.min <= number <= column.max else None


def _is_moment(text: str, column: Date) -> bool:
    has_time = "hour" in column.parts
    if not (MOMENT if has_time else DAY).fullmatch(text):
        return False
    try:
        day = date.fromisoformat(text[:10])
        if has_time:
            time.fromisoformat(text[11:])
    except ValueError:
        return False
    return column.min <= day <= column.max


def _parse_text(text: str) -> str | None:
    if not text.strip() or CONTROLS.search(text) or has_half_letter(text):
        return None
    parts = re.split(r"(\\.?)", text)
    if any(part.startswith("\\") and part not in LETTERS for part in parts):
        return None
    plain = "".join(LETTERS.get(part, part) for part in parts)
    return plain if plain.strip() else None
