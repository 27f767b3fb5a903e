"""`npz`: arrays in a NumPy archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.archive import is_integer, open_archive
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
        chosen = archive.array(features, shape, "numbers", _is_number, part)
        labels: NDArray[Any] = drop_labels(len(chosen))
        if labelled is not None:
            labels = archive.array(labelled.labels, (), *of_labels, part)
        names = None if name_array is None else archive.array(name_array, (), "texts or integers", _is_id, part)
    reading.counts.records = len(chosen)
    if chosen.dtype != np.uint8:
        with np.errstate(over="ignore"):  # overflow becomes infinite; such a record contributes nothing
            chosen = chosen.astype(np.float32)
        finite = np.isfinite(chosen).reshape(len(chosen), -1).all(axis=1)
        reading.counts.not_finite = len(chosen) - int(finite.sum())
    if labelled is not None:
        subject, target = f"{file.name}, {labelled.labels!r}", labelled.target
        if target is None:
            labels = class_labels(labels, labelled.classes or 0, subject, reading.problems, part.start)
        else:
            labels = number_labels(labels, target, subject, reading, part.start)
    texts = None
    if names is not None and name_array is not None:
        texts = tuple(
            name_texts(
                names.tolist(),
                name_array,
                lambda row: f"{file.name}, {record_number(part.start + row)}",
                reading.problems,
            )
        )
    return Raw(channels_first(chosen), labels, texts)


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf"


def _is_id(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuU"
