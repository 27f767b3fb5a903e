"""`npz`: arrays in a NumPy archive."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.archive import Archive, is_integer, open_archive
from dprecipe.data.collector import RecordCollector
from dprecipe.data.files import locate_file
from dprecipe.data.omitted import mark_missing
from dprecipe.data.raw import (
    Raw,
    Reading,
    channels_first,
    class_labels,
    count_labels,
    drop_labels,
    number_labels,
    record_number,
)
from dprecipe.data.several import several_labels
from dprecipe.data.sources.arrays import AnyNpz, Npz
from dprecipe.data.sources.base import Labelled
from dprecipe.data.table import read_names
from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget, SeveralTarget, TokenTarget
from dprecipe.faults import DataFault

SAVE = "save it with numpy.savez_compressed(path, features=…, labels=…)"


def read(source: AnyNpz, root: Path, reading: Reading) -> Raw:
    """Returns the selected records: features uint8 or float32, the texts of `reading.name_column`, and labels: in [0,
    classes), mapped from their range to [-1, 1], counts, or several answers as one number.

    The headers are checked against the recipe before an array is unpacked.

    Raises:
        DataFault: the file is missing, is not an archive, holds Python objects, or is not what the recipe declares.
    """
    labelled = source if isinstance(source, Npz) else None
    form = (source.features, source.shape, "numbers", is_number)
    file = locate_file(source.path, root)
    with open_archive(file, SAVE) as archive:
        count = archive.dims(*form)[0]
        others = [] if labelled is None else [(labelled.labels, _label_form(labelled))]
        others += [(array, NAMES) for array in reading.naming_columns]
        for name, other in others:
            if archive.dims(name, *other)[0] != count:
                raise DataFault(
                    f"{file}: {source.features!r} and {name!r} have different numbers of records",
                    "store one entry per record in each array",
                )
        part = reading.span(source.records, count, file.name)
        collector = RecordCollector(reading)
        chosen = _choose(file, archive, part, collector, reading)
        labels: NDArray[Any] = drop_labels(len(chosen))
        if labelled is not None:
            labels = archive.array(labelled.labels, *_label_form(labelled), part)[chosen]
            subject = f"{file.name}, {labelled.labels!r}"
            labels = check_labels(labels, labelled, subject, reading, part.start + chosen)
        start = 0
        for some in archive.chunks(*form, part):
            first, end = np.searchsorted(chosen, (start, start + len(some)))
            rows = chosen[first:end]
            numbers = as_features(some if len(rows) == len(some) else some[rows - start], reading)
            collector.append(channels_first(numbers), labels[first:end])
            start += len(some)
    return collector.raw(np.empty(0))


def _choose(
    file: Path, archive: Archive, part: slice, collector: RecordCollector, reading: Reading
) -> NDArray[np.int64]:
    """Chooses the records of a part that are used, (B,), by the arrays that name them, read some at a time."""
    chosen, start, arrays = [], 0, reading.naming_columns
    read = archive.chunks if len(arrays) == 1 else lambda *asked: (whole for whole in (archive.array(*asked),))
    with ExitStack() as opened:
        every = [opened.enter_context(closing(read(array, *NAMES, part))) for array in arrays]
        for some in zip(*every, strict=True) if arrays else [()]:
            rows = len(some[0]) if arrays else part.stop - part.start
            columns = {array: values.tolist() for array, values in zip(arrays, some, strict=True)}
            place = partial(_place, file, part.start + start)
            used = collector.choose(read_names(columns, place, reading), rows, place)
            chosen.append(start + (np.arange(rows) if used is None else used))
            start += rows
    return np.concatenate(chosen)


def check_labels(
    labels: NDArray[Any], labelled: Labelled, subject: str, reading: Reading, numbers: NDArray[np.int64]
) -> NDArray[np.int64] | NDArray[np.float32]:
    """Labels as a run takes them; what is wrong with them is added to the reading's problems. NaN is a missing label
    where records without one are omitted."""
    if labelled.omits_records and labels.dtype.kind == "f" and (missing := np.isnan(labels)).any():
        reading.counts.column("label", "label").missing += int(missing.sum())
        present = check_labels(labels[~missing], labelled, subject, reading, numbers[~missing])
        return mark_missing(present, missing)
    match labelled.target:
        case ClassTarget(classes=classes):
            return class_labels(labels, classes, subject, reading.problems, numbers)
        case NumberTarget(lowest=lowest, highest=highest):
            return number_labels(labels, (lowest, highest), subject, reading, numbers)
        case CountTarget(max=largest):
            return count_labels(labels, largest, subject, reading, numbers)
        case TokenTarget():
            raise ValueError("arrays hold no texts")
        case SeveralTarget():
            return several_labels(labels, subject, reading.problems, numbers)


def as_features(numbers: NDArray[Any], reading: Reading) -> NDArray[Any]:
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


def _is_answer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biu"


def is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf"


def _is_id(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuU"


Form = tuple[tuple[int | None, ...], str, Callable[[np.dtype[Any]], bool]]
"""Form of an array: the shape of an entry, what it holds in words, and a test of its type."""
NAMES: Form = ((), "texts or integers", _is_id)


def _label_form(labelled: Labelled) -> Form:
    target = labelled.target
    if isinstance(target, SeveralTarget):
        return (len(target.names),), "0 and 1, or truth values", _is_answer
    are_floats = isinstance(target, NumberTarget) or labelled.omits_records  # NaN is one
    return ((), "numbers", is_number) if are_floats else ((), "integers", is_integer)
