"""`mechanism.teachers.votes`: the votes of an ensemble trained elsewhere. They are untrusted: all of them are checked.

Axes: Q queries, M classes, N teachers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.data.archive import is_integer, open_archive
from dprecipe.data.facts import describe_data
from dprecipe.data.files import DataFile, locate_file
from dprecipe.data.values import parse_number
from dprecipe.faults import DataFault
from dprecipe.mechanisms.pate.aggregators import Counts
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.schema import VotesFile
from dprecipe.mechanisms.pate.votes_table import Meaning, VotesTable, read_csv, read_names, read_parquet

SAVE = "save it with numpy.savez_compressed(path, votes=…), integers: counts (records, classes), or labels"
FIRST_ROW = "its first line seems to hold votes, where the names of its columns are expected"
BLOCK = 1 << 22
"""The most labels that are counted at once."""


@final
@dataclass(frozen=True, slots=True)
class Expected:
    """The recipe's statements about a votes file: all of them are public."""

    rows: int
    teachers: int
    classes: int
    names: tuple[str, ...] | None = None
    """The declared names of the classes, if they have any."""
    of_public: bool = True
    """True if each row is of a record of `data.public`; else rows are the queries, and a file may have more of them."""

    @staticmethod
    def of(plan: Plan, rows: int | None = None) -> Expected:
        """Returns what a plan expects; `rows`: how many public records there are, if there are any."""
        planned = plan.as_plan_of(PatePlan)
        names = plan.data.train.class_names
        count = planned.queries if rows is None else rows
        return Expected(count, planned.ensemble.count, describe_data(plan.data).outputs, names, rows is not None)


def read(spec: VotesFile, root: Path, expected: Expected) -> Counts:
    """Returns the counts of each query, in order: (Q, M); each row sums to the number of teachers.

    A file with one column per class holds counts; one with a column per teacher holds the class that each votes for.
    Only these two numbers decide which it is; they are public. The file's content never decides it.

    Raises:
        DataFault: the file is missing, damaged or holds Python objects; it has another shape or holds no votes.
    """
    file = locate_file(spec.path, root)
    if spec.format == "npz":
        return _read_array(spec, file, expected)
    return _read_table(spec, DataFile.of(file), expected)


def _read_array(spec: VotesFile, file: Path, expected: Expected) -> Counts:
    place = f"{file.name}: array {spec.array!r}"
    with open_archive(file, SAVE) as archive:
        count, columns = archive.dims(spec.array, (None,), "integers", is_integer)
        if columns not in (expected.classes, expected.teachers):
            raise _wrong_columns(place, columns, expected, "name another array, or mend")
        part = _select_rows(spec, count, expected, place)
        rows = archive.array(spec.array, (None,), "integers", is_integer, part)

    def where(row: int) -> str:
        return f"row {part.start + row}"

    if columns == expected.classes:
        return _check_counts(rows, place, where, expected.teachers)
    return _count_label_rows(rows, place, where, expected.classes)


def _read_table(spec: VotesFile, file: DataFile, expected: Expected) -> Counts:
    place, (first, end) = file.name, spec.records or (0, None)
    last = first + expected.rows + 1 if end is None else end  # one more row shows that there are too many
    reader = read_csv if spec.format == "csv" else read_parquet
    table: VotesTable = reader(file, partial(_choose_meaning, expected), first, last)
    _select_rows(spec, first + len(table.numbers), expected, place)
    rows = table.numbers[: expected.rows]
    if rows.shape[1] == expected.classes:
        return _check_counts(rows, place, lambda row: table.places[row], expected.teachers)
    return count_labels(rows, expected.classes)


def read_columns(spec: VotesFile, file: Path) -> list[str]:
    """Returns the names of a file's columns; those of an array are numbers. No vote is read.

    Raises:
        DataFault: it is missing, damaged, of an unknown format, or has no such array.
    """
    if not file.is_file():
        raise DataFault(f"{file}: there is no such file", "check the spelling of the path")
    if spec.format is None:
        raise DataFault(f"{file}: is no votes file, by its name", "save it as .npz, .csv, .csv.gz or .parquet")
    if spec.format == "npz":
        with open_archive(file, SAVE) as archive:
            return list(map(str, range(archive.dims(spec.array, (None,), "integers", is_integer)[1])))
    names = read_names(DataFile.of(file), spec.format)
    if holds_votes(names):
        raise DataFault(f"{file.name}: {FIRST_ROW}", "begin the file with a header line")
    return names


def _choose_meaning(expected: Expected, file: DataFile, header: Sequence[str]) -> Meaning:
    """Returns the meaning of a table's columns, by their number and names.

    Columns of counts that are named as the classes are taken by their names; unnamed classes in the order of the file.
    """
    columns, names = len(header), list(expected.names or ())
    if columns not in (expected.classes, expected.teachers):
        raise _wrong_columns(
            file.name, columns, expected, "remove columns that hold no votes (a number or name of the row), or mend"
        )
    counts = columns == expected.classes
    if counts and names and sorted(header) == sorted(names):
        return Meaning([header.index(name) for name in names], expected.teachers, "count of teachers", {})
    if holds_votes(header, names):
        wanted = "the names of the classes" if counts else "a name for each teacher"
        raise file.fault(FIRST_ROW, f"begin the file with a header line: {wanted}")
    if not counts:
        known = {name: number for number, name in enumerate(names)}
        return Meaning(range(columns), expected.classes - 1, "label of a class", known)
    if is_numbered(header):
        return Meaning(sorted(range(columns), key=lambda n: int(header[n])), expected.teachers, "count of teachers", {})
    if names:
        raise DataFault(
            f"{file.name}: its columns are not named as the classes",
            f"name the columns as data.train declares the classes: {', '.join(map(repr, names[:20]))}",
            file.at(f"its columns are {', '.join(map(repr, header[:20]))}"),
        )
    return Meaning(range(columns), expected.teachers, "count of teachers", {})


def is_numbered(header: Sequence[str]) -> bool:
    """Returns True if the names are the numbers from 0 or 1 on, in any order."""
    return any(sorted(header) == sorted(map(str, range(first, first + len(header)))) for first in (0, 1))


def holds_votes(header: Sequence[str], classes: Sequence[str] = ()) -> bool:
    """Returns True if a header line may be a row of votes: a name is a number or stands twice, or all are classes. It
    is none if it numbers the columns."""
    if is_numbered(header):
        return False
    numeric = any(parse_number(name) is not None for name in header)
    return numeric or len(set(header)) < len(header) or set(header) <= set(classes)


def _wrong_columns(place: str, columns: int, expected: Expected, remedy: str) -> DataFault:
    return DataFault(
        f"{place} has {columns} columns, expected {expected.classes} (counts of each class) or {expected.teachers} "
        "(each teacher's label)",
        f"{remedy} data.train's classes or mechanism.teachers.count",
    )


def _select_rows(spec: VotesFile, count: int, expected: Expected, place: str) -> slice:
    """Returns the rows that are read: one for each query or public record. No others are unpacked."""
    first, end = (0, count) if spec.records is None else spec.records
    rows = expected.rows
    if end <= count and (end - first == rows or (end - first > rows and not expected.of_public)):
        return slice(first, first + rows)
    noun, remedy = "queries", "lower mechanism.queries.max to the number of rows, or give a row of votes for each query"
    if expected.of_public:
        noun = "records of data.public"
        remedy = (
            "give a row of votes for each public record, in their order; mechanism.teachers.votes.records selects rows"
        )
    raise DataFault(
        f"{place} does not have a row for each of the {rows:,} {noun}",
        remedy,
        f"{count:,} rows, of which [{first}, {end}) are read",
    )


def _check_counts(rows_QM: NDArray[Any], place: str, where: Callable[[int], str], teachers: int) -> Counts:
    negative = np.argwhere(rows_QM < 0)
    if len(negative):
        row, column = negative[0]
        raise DataFault(f"{place}: a row holds a negative count", SAVE, f"{where(row)}, column {column}")
    sums_Q = rows_QM.sum(axis=1, dtype=np.float64)  # counts of teachers are exact in float64, and nothing overflows
    wrong = np.flatnonzero(sums_Q != teachers)
    if len(wrong):
        total = f"more than {teachers}" if sums_Q[wrong[0]] > teachers else f"{sums_Q[wrong[0]]:.0f}"
        raise DataFault(
            f"{place}: a row does not have the votes of {teachers} teachers",
            "every teacher votes once on every record: set mechanism.teachers.count to how many there are",
            f"{where(wrong[0])} has {total}; {len(wrong)} of {len(rows_QM)} rows don't add up",
        )
    return rows_QM.astype(np.int32)


def _count_label_rows(labels_QN: NDArray[Any], place: str, where: Callable[[int], str], classes: int) -> Counts:
    wrong = np.argwhere((labels_QN < 0) | (labels_QN >= classes))
    if len(wrong):
        row, column = wrong[0]
        raise DataFault(
            f"{place}: a row holds a label outside 0 … {classes - 1}",
            "number the classes as the recipe declares them",
            f"{where(row)}, column {column} holds {labels_QN[row, column]}",
        )
    return count_labels(labels_QN, classes)


def count_labels(labels_QN: NDArray[Any], classes: int) -> Counts:
    """Counts the labels of each class in each row: (Q, M)."""
    queries, teachers = labels_QN.shape
    counts_QM = np.empty((queries, classes), np.int32)
    rows = max(1, BLOCK // max(teachers, classes))
    for start in range(0, queries, rows):
        part = labels_QN[start : start + rows].astype(np.int64)
        part += classes * np.arange(len(part))[:, None]
        counts_QM[start : start + rows] = np.bincount(part.ravel(), minlength=len(part) * classes).reshape(-1, classes)
    return counts_QM
