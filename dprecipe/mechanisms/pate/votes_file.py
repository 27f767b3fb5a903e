"""`mechanism.teachers.votes`: what an ensemble voted that was trained elsewhere. Untrusted: all of it is checked.

Axes: Q queries, M classes, N teachers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.archive import is_integer, opened
from dprecipe.data.files import locate
from dprecipe.data.raw import span
from dprecipe.faults import DataFault
from dprecipe.mechanisms.pate.aggregators import Counts
from dprecipe.mechanisms.pate.schema import VotesFile

SAVE = "save it with numpy.savez_compressed(path, votes=…), integers: counts (records, classes), or labels"
BLOCK = 1 << 22
"""Labels that are counted at once."""


def read(spec: VotesFile, root: Path, public: int, teachers: int, classes: int) -> Counts:
    """The counts of each of `public` public records, in their order: (Q, M), every row summing to `teachers`.

    An array of as many columns as there are classes holds counts; one of as many as there are teachers, the class that
    each votes for. Which of the two is decided by these numbers, which are public, and never by what the file holds.

    Raises:
        DataFault: the file is missing, damaged or holds Python objects; its array has another shape or is no votes.
    """
    file = locate(spec.path, root)
    with opened(file, SAVE) as archive:
        array = archive.array(spec.array, (None,), "integers", is_integer)
    where, columns = f"{file}: array {spec.array!r}", array.shape[1]
    if columns not in (classes, teachers):
        raise DataFault(
            f"{where} has {columns} columns, expected {classes} (counts of each class) or {teachers} (each teacher's "
            "label)",
            "name another array, or mend data.train's classes or mechanism.teachers.count",
        )
    chosen = array[span(spec.records, len(array), file.name)]
    first = 0 if spec.records is None else spec.records[0]
    if len(chosen) != public:
        raise DataFault(
            f"{where}: {len(chosen)} rows are selected, data.public holds {public} records",
            "give a row of votes for each public record, in their order; mechanism.teachers.votes.records selects rows",
        )
    if columns == classes:
        return _counts(chosen, where, first, teachers)
    return _counted(chosen, where, first, classes)


def _counts(rows_QM: NDArray[Any], where: str, first: int, teachers: int) -> Counts:
    negative = np.flatnonzero((rows_QM < 0).any(axis=1))
    if len(negative):
        raise DataFault(f"{where}: row {first + negative[0]} holds a negative count", SAVE)
    sums_Q = rows_QM.sum(axis=1, dtype=np.float64)  # counts of teachers are exact in it, and nothing overflows
    wrong = np.flatnonzero(sums_Q != teachers)
    if len(wrong):
        found = f"more than {teachers}" if sums_Q[wrong[0]] > teachers else f"{sums_Q[wrong[0]]:.0f}"
        raise DataFault(
            f"{where}: row {first + wrong[0]} has {found} votes, expected those of {teachers} teachers "
            f"({len(wrong)} of {len(rows_QM)} rows don't add up)",
            "every teacher votes once on every record: set mechanism.teachers.count to how many there are",
        )
    return rows_QM.astype(np.int32)


def _counted(labels_QN: NDArray[Any], where: str, first: int, classes: int) -> Counts:
    wrong = np.flatnonzero(((labels_QN < 0) | (labels_QN >= classes)).any(axis=1))
    if len(wrong):
        row = labels_QN[wrong[0]]
        label = row[(row < 0) | (row >= classes)][0]
        raise DataFault(
            f"{where}: row {first + wrong[0]} holds the label {label}, expected 0 … {classes - 1}",
            "number the classes as the recipe declares them",
        )
    return count_labels(labels_QN, classes)


def count_labels(labels_QN: NDArray[Any], classes: int) -> Counts:
    """How many of the labels of each row are each class: (Q, M)."""
    queries, teachers = labels_QN.shape
    counts_QM = np.empty((queries, classes), np.int32)
    rows = max(1, BLOCK // max(teachers, classes))
    for start in range(0, queries, rows):
        part = labels_QN[start : start + rows].astype(np.int64)
        part += classes * np.arange(len(part))[:, None]
        counts_QM[start : start + rows] = np.bincount(part.ravel(), minlength=len(part) * classes).reshape(-1, classes)
    return counts_QM
