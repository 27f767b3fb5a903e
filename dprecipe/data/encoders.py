"""Fields of a column to features, by constants of the recipe alone.

An encoder writes into its part of the features (rows, width), counts what was missing, clamped or not declared, and
reports each field that is none of what the column declares, by its place and not by its value. `check_texts` is for
models that learn texts as they are: nothing is trimmed, replaced or made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.columns import (
    PART_WIDTHS,
    Boolean,
    Category,
    ColumnBlock,
    Date,
    IncompleteColumn,
    Integer,
    Ordinal,
    Quantity,
    write_number,
)
from dprecipe.data.counts import ColumnCounts
from dprecipe.data.problems import Place, Problems
from dprecipe.data.raw import count_clamped
from dprecipe.data.values import (
    Value,
    Values,
    as_list,
    look_up,
    map_texts,
    number_texts,
    parse_numbers,
    select_rows,
    texts_of,
)
from dprecipe.data.words import MARKS, describe_text
from dprecipe.faults import InternalFault

Part = NDArray[np.float32]
MAX_LISTED = 20
NO_WORDS, YES_WORDS = ("false", "f", "no", "n", "0", "0.0"), ("true", "t", "yes", "y", "1", "1.0")


@final
class ColumnReport:
    """Adds problems of one column, with the place of the row."""

    def __init__(self, column: str, place: Place, problems: Problems) -> None:
        self._column = column
        self._place = place
        self._problems = problems

    def add(self, row: int, problem: str, remedy: str, in_file: str = "correct the value in the file") -> None:
        """Adds the problem of a row. `in_file`: the remedy where the recipe can't be changed (`Problems.finished`)."""
        remedy = in_file if self._problems.finished else remedy
        file, _, line = self._place(row).partition(", ")
        self._problems.add(f"{file}, column {self._column!r}", problem, remedy, line)


def encode_column(values: Values, column: ColumnBlock, part: Part, report: ColumnReport, counts: ColumnCounts) -> None:
    """Writes the features of a column that needs no step other than `one_hot` into zeros (rows, `column.width`)."""
    gaps = part[:, -1] if isinstance(column, IncompleteColumn) and column.has_indicator else None
    match column:
        case Quantity():
            part[:, 0] = _scale(parse_quantity(values, column, report, counts, gaps), column.limits)
        case Boolean():
            part[:, 0] = parse_truth(texts_of(values), column, report, counts, gaps)
        case Ordinal():
            part[:, 0] = parse_ranks(values, column, report, counts) / (len(column.values) - 1)
        case Date():
            _write_parts(parse_dates(texts_of(values), column, report, counts, gaps), column, part, counts)
        case Category():
            numbers = {value: number for number, value in enumerate(column.values)}
            found = number_texts(values, numbers, len(column.values))
            counts.other += int(np.count_nonzero(found == len(column.values)))
            part[np.arange(len(found)), found] = 1.0
        case _:
            raise InternalFault(f"features of a column of kind {column.kind}")


def _scale(numbers: NDArray[np.float64], limits: tuple[float, float]) -> NDArray[np.float64]:
    """Numbers clamped to the limits and mapped to [0, 1]."""
    low, high = limits
    span = high / 2 - low / 2  # halves: the range itself may overflow
    unit = np.clip(numbers, low, high)
    unit /= 2
    unit -= low / 2
    unit /= span
    return np.clip(unit, 0.0, 1.0, out=unit)


def parse_quantity(
    values: Values, column: Quantity, report: ColumnReport, counts: ColumnCounts, gaps: Part | None = None
) -> NDArray[np.float64]:
    """Returns the numbers of a column as they are written, (N,); a missing one as declared. Those outside the range,
    which the caller clamps, are counted. `gaps`, (N,), zeros: gets a 1 for each missing number; so below.
    """
    numbers = parse_numbers(values, column.writing)
    absent = np.isnan(numbers)
    if not absent.any():
        count_clamped(counts, numbers, column.limits)
        _check_whole(numbers, column, report)
        return numbers
    rows = np.flatnonzero(absent).tolist()
    texts = texts_of(select_rows(values, rows))
    declared = f"min: {write_number(column.min)}, max: {write_number(column.max)}, "
    for row, text in _report_missing(rows, texts, column, declared, report, counts, gaps):
        report.add(row, *describe_text(text, column), "write a number, as programs do: 1234.5")
    numbers[absent] = column.min if column.fill is None else column.fill
    count_clamped(counts, numbers[~absent], column.limits)
    _check_whole(numbers, column, report)
    return numbers


def _check_whole(numbers: NDArray[np.float64], column: Quantity, report: ColumnReport) -> None:
    if isinstance(column, Integer):
        for row in np.flatnonzero(numbers != np.floor(numbers)).tolist():
            remedy = "correct the row, or declare the column as numeric"
            report.add(row, "a field is a number with a fraction", remedy, "write a whole number")


def parse_answers(texts: Sequence[str], declared: Sequence[str] | None) -> NDArray[np.float64]:
    """Returns the answers that N texts give, (N,): 0 for no and 1 for yes, in the usual words, or in the two that
    are `declared`, the one for no first; NaN where a text is none of them.
    """
    if declared is not None:
        known = {word: float(answer) for answer, word in enumerate(declared)}
    else:
        known = {word: float(answer) for answer, words in enumerate((NO_WORDS, YES_WORDS)) for word in words}
        texts = [text.casefold() for text in texts]
    return np.array(look_up(texts, known, np.nan), np.float64)


def parse_truth(
    texts: Sequence[str], column: Boolean, report: ColumnReport, counts: ColumnCounts, gaps: Part | None = None
) -> NDArray[np.float64]:
    """Returns 0 for no and 1 for yes, (N,)."""
    result = parse_answers(texts, column.values)
    rows = np.flatnonzero(np.isnan(result)).tolist()
    which = "" if column.values is None else "the declared "
    for row, _ in _report_missing(rows, [texts[row] for row in rows], column, "", report, counts, gaps):
        report.add(
            row,
            f"a field is none of {which}values for no and yes",
            "declare the two texts, the one for no first: {kind: boolean, values: ['no', 'yes']}, or correct the row",
            f"write one of the texts for no and yes: {', '.join(column.values or ('no', 'yes'))}",
        )
    result[rows] = float(column.fill or False)
    return result


def parse_ranks(values: Values, column: Ordinal, report: ColumnReport, counts: ColumnCounts) -> NDArray[np.float64]:
    """Returns the places of ordered values among the declared ones, from 0 on, (N,)."""
    ranks = {value: rank for rank, value in enumerate(column.values)}
    result = number_texts(values, ranks, -1).astype(np.float64)
    rows = np.flatnonzero(result < 0).tolist()
    texts = texts_of(select_rows(values, rows)) if rows else []
    declared = f"values: [{', '.join(column.values)}], "
    for row, _ in _report_missing(rows, texts, column, declared, report, counts):
        report.add(
            row,
            f"a field is not among the {len(ranks)} declared values",
            "declare in values every one that can occur, in order, or correct the row; or write {kind: category}",
            f"write one of the values: {', '.join(column.values[:MAX_LISTED])}{' …' * (len(ranks) > MAX_LISTED)}",
        )
    result[rows] = 0 if column.fill is None else ranks[column.fill]
    return result


def parse_dates(
    texts: Sequence[str], column: Date, report: ColumnReport, counts: ColumnCounts, gaps: Part | None = None
) -> list[datetime]:
    """Returns the days and times of a column, as a clock on the wall showed them."""

    found = map_texts(texts, lambda text: _parse_moment(text, column.format))
    rows = [row for row, moment in enumerate(found) if moment is None]
    declared = f"min: {column.min}, max: {column.max}, "
    wrong = list(_report_missing(rows, [texts[row] for row in rows], column, declared, report, counts, gaps))
    written = "in ISO 8601, such as 2024-05-17" if column.format is None else f"as {column.format}"
    remedy = "declare how dates are written: {kind: date, …, format: '%d.%m.%Y'}"
    if wrong and column.format is not None:
        absent = set(rows) - {row for row, _ in wrong}
        if all(row in absent or _parse_moment(text, None) for row, text in enumerate(texts)):
            remedy = "remove format: these dates are in ISO 8601, as those of Parquet and of databases are"
    for row, _ in wrong:
        report.add(row, f"a field is no date {written}", remedy, f"write the date {written}")
    instead = _midnight(column.fill or column.min)
    return [moment or instead for moment in found]


def _parse_moment(text: str, form: str | None) -> datetime | None:
    """Returns the moment that a text is, in a format or in ISO 8601, as the clock on the wall showed it."""
    try:
        if form is not None:
            return datetime.strptime(text, form)
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day)


def _write_parts(moments: Sequence[datetime], column: Date, part: Part, counts: ColumnCounts) -> None:
    rows, start = np.arange(len(moments)), 0
    for name in column.parts:
        match name:
            case "time":
                limits = (0.0, (column.max - column.min) / timedelta(days=1))
                days = [(moment - _midnight(column.min)) / timedelta(days=1) for moment in moments]
                numbers = np.array(days, np.float64)
                count_clamped(counts, numbers, limits)
                part[:, start] = _scale(numbers, limits)
            case "month":
                part[rows, [start + moment.month - 1 for moment in moments]] = 1.0
            case "weekday":
                part[rows, [start + moment.weekday() for moment in moments]] = 1.0
            case "hour":
                part[rows, [start + moment.hour for moment in moments]] = 1.0
        start += PART_WIDTHS[name]


def _report_missing(
    rows: Sequence[int],
    texts: Sequence[str],
    column: IncompleteColumn,
    declared: str,
    report: ColumnReport,
    counts: ColumnCounts,
    gaps: Part | None = None,
) -> Iterator[tuple[int, str]]:
    """Counts the rows that are missing, and reports them where the column does not say what they count as; the others,
    with their texts. `declared`: what else the column declares, for the remedy."""
    marks = frozenset(column.marks or ())
    for row, text in zip(rows, texts, strict=True):
        if text != "" and text.casefold() not in MARKS and text not in marks:
            yield row, text
            continue
        counts.missing += 1
        if gaps is not None:
            gaps[row] = 1.0
        if column.missing is None:
            report.add(
                row,
                "a field is empty" if text == "" else "a field holds a mark for a missing value, such as NA",
                "declare what a missing field counts as, a usual value from domain knowledge: "
                f"{{kind: {column.kind}, {declared}missing: {column.example}}}",
                "fill it in: the release has no value for a missing field",
            )


HALF_LETTER = "a text holds half of a letter of two parts (a lone surrogate)"
HALF_REMEDY = "write the text again in UTF-8, or leave the row out"


def check_texts(values: Values, report: ColumnReport, may_be_empty: bool = False) -> list[str | None]:
    """Returns the texts of a column, blanks around them included; None for a field that is empty or no text, which is
    reported."""
    return [_check_text(value, row, report, may_be_empty) for row, value in enumerate(as_list(values))]


def has_half_letter(text: str) -> bool:
    """Returns True if a text holds a lone surrogate, which no encoding of text has."""
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def _check_text(value: Value, row: int, report: ColumnReport, may_be_empty: bool) -> str | None:
    if value is not None and not isinstance(value, str):
        report.add(row, "a field is no text", "store the column as texts")
    elif not may_be_empty and not (value or "").strip():
        report.add(row, "a text is empty", "fill it in, or leave the row out")
    elif has_half_letter(value or ""):
        report.add(row, HALF_LETTER, HALF_REMEDY)
    else:
        return value or ""
    return None
