"""`mechanism.teachers.votes`: the votes of an ensemble trained elsewhere. They are untrusted: all of them are checked.

Axes: Q queries, M classes, N teachers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.archive import is_integer, open_archive
from dprecipe.data.files import locate_file
from dprecipe.faults import DataFault
from dprecipe.mechanisms.pate.aggregators import Counts
from dprecipe.mechanisms.pate.schema import VotesFile

SAVE = "save it with numpy.savez_compressed(path, votes=…), integers: counts (records, classes), or labels"
BLOCK = 1 << 22
"""The most labels that are counted at once."""


def read(spec: VotesFile, root: Path, public: int, teachers: int, classes: int) -> Counts:
    """Returns the counts for each of `public` public records, in order: (Q, M); each row sums to `teachers`.

    An array with one column per class holds counts; one with a column per teacher holds the class that each votes for.
    Only these two numbers decide which it is; they are public. The file's content never decides it.

    Raises:
        DataFault: the file is missing, damaged or holds Python objects; its array has another shape or is no votes.
    """
    file = locate_file(spec.path, root)
    place = f"{file}: array {spec.array!r}"
    with open_archive(file, SAVE) as archive:
        count, columns = archive.dims(spec.array, (None,), "integers", is_integer)
        if columns not in (classes, teachers):
            raise DataFault(
                f"{place} has {columns} columns, expected {classes} (counts of each class) or {teachers} (each "
                "teacher's label)",
                "name another array, or mend data.train's classes or mechanism.teachers.count",
            )
        part = _select_rows(spec, count, public, place)
        rows = archive.array(spec.array, (None,), "integers", is_integer, part)
    if columns == classes:
        return _check_counts(rows, place, part.start, teachers)
    return _count_label_rows(rows, place, part.start, classes)


def _select_rows(spec: VotesFile, count: int, public: int, place: str) -> slice:
    """Returns the rows that are read: one for each public record. No others are unpacked."""
    first, end = (0, count) if spec.records is None else spec.records
    if end > count or end - first != public:
        raise DataFault(
            f"{place} does not have a row for each of the {public:,} records of data.public",
            "give a row of votes for each public record, in their order; mechanism.teachers.votes.records selects rows",
            f"{count:,} rows, of which [{first}, {end}) are read",
        )
    return slice(first, end)


def _check_counts(rows_QM: NDArray[Any], place: str, first: int, teachers: int) -> Counts:
    negative = np.flatnonzero((rows_QM < 0).any(axis=1))
    if len(negative):
        raise DataFault(f"{place}: a row holds a negative count", SAVE, f"row {first + negative[0]}")
    sums_Q = rows_QM.sum(axis=1, dtype=np.float64)  # counts of teachers are exact in float64, and nothing overflows
    wrong = np.flatnonzero(sums_Q != teachers)
    if len(wrong):
        total = f"more than {teachers}" if sums_Q[wrong[0]] > teachers else f"{sums_Q[wrong[0]]:.0f}"
        raise DataFault(
            f"{place}: a row does not have the votes of {teachers} teachers",
            "every teacher votes once on every record: set mechanism.teachers.count to how many there are",
            f"row {first + wrong[0]} has {total}; {len(wrong)} of {len(rows_QM)} rows don't add up",
        )
    return rows_QM.astype(np.int32)


def _count_label_rows(labels_QN: NDArray[Any], place: str, first: int, classes: int) -> Counts:
    wrong = np.flatnonzero(((labels_QN < 0) | (labels_QN >= classes)).any(axis=1))
    if len(wrong):
        row = labels_QN[wrong[0]]
        label = row[(row < 0) | (row >= classes)][0]
        raise DataFault(
            f"{place}: a row holds a label outside 0 … {classes - 1}",
            "number the classes as the recipe declares them",
            f"row {first + wrong[0]} holds {label}",
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
