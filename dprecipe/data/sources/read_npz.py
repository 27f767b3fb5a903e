"""`npz`: arrays in a NumPy archive."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.archive import is_integer, open_archive
from dprecipe.data.collector import RecordCollector
from dprecipe.data.files import locate_file
from dprecipe.data.raw import Raw, Reading, channels_first, class_labels, drop_labels, number_labels, record_number
from dprecipe.data.sources.npz import Npz
from dprecipe.data.table import name_texts
from dprecipe.faults import DataFault

SAVE = "save it with numpy.savez_compressed(path, features=…, labels=…)"


def read_npz(
    path: str,
    features: str,
    shape: tuple[int, ...],
    labelled: Npz | None,
    records: tuple[int, ...] | None,
    root: Path,
    reading: Reading,
) -> Raw:
    """The selected records: features uint8 or float32, the texts of `reading.name_column`, and labels: in [0, classes),
    or mapped from their range to [-1, 1].

    The headers are checked against the recipe before an array is unpacked.

    Raises:
        DataFault: the file is missing, is not an archive, holds Python objects, or is not what the recipe declares.
    """
    file = locate_file(path, root)
    numeric = labelled is not None and labelled.range is not None
    of_labels = ("numbers", _is_number) if numeric else ("integers", is_integer)
    name_array = reading.name_column
    with open_archive(file, SAVE) as archive:
        count = archive.dims(features, shape, "numbers", _is_number)[0]
        others = [] if labelled is None else [(labelled.labels, *of_labels)]
        if name_array is not None:
            others.append((name_array, "texts or integers", _is_id))
        for name, expected, accepts in others:
            if archive.dims(name, (), expected, accepts)[0] != count:
                raise DataFault(
                    f"{file}: {features!r} and {name!r} have different numbers of records",
                    "store one entry per record in each array",
                )
        part = reading.span(records, count, file.name)
        labels: NDArray[Any] = drop_labels(part.stop - part.start)
        if labelled is not None:
            labels = archive.array(labelled.labels, (), *of_labels, part)
            labels = _checked_labels(labels, labelled, f"{file.name}, {labelled.labels!r}", reading, part.start)
        collector, chosen = RecordCollector(reading), np.arange(len(labels))
        if name_array is not None:
            parts, start = [], part.start
            for some in archive.chunks(name_array, (), "texts or integers", _is_id, part):
                place = partial(_place, file, start)
                names = name_texts(some.tolist(), name_array, place, reading.problems)
                parts.append(collector.choose(names) + (start - part.start))
                start += len(some)
            chosen = np.concatenate(parts)
        start = 0
        for some in archive.chunks(features, shape, "numbers", _is_number, part):
            first, end = np.searchsorted(chosen, (start, start + len(some)))
            rows = chosen[first:end]
            numbers = _as_features(some if len(rows) == len(some) else some[rows - start], reading)
            collector.append(channels_first(numbers), labels[rows])
            start += len(some)
    return collector.raw(np.empty(0))


def _checked_labels(
    labels: NDArray[Any], labelled: Npz, subject: str, reading: Reading, first: int
) -> NDArray[np.int64] | NDArray[np.float32]:
    if labelled.target is None:
        return class_labels(labels, labelled.classes or 0, subject, reading.problems, first)
    return number_labels(labels, labelled.target, subject, reading, first)


def _as_features(numbers: NDArray[Any], reading: Reading) -> NDArray[Any]:
    """Bytes as they are, other numbers in single precision; both are counted."""
    reading.counts.records += len(numbers)
    if numbers.dtype == np.uint8:
        return numbers
    with np.errstate(over="ignore"):  # overflow becomes infinite; such a record contributes nothing
        numbers = numbers.astype(np.float32)
    finite = np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)
    reading.counts.not_finite += len(numbers) - int(finite.sum())
    return numbers


def _place(file: Path, first: int, row: int) -> str:
    return f"{file.name}, {record_number(first + row)}"


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf"


def _is_id(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuU"
