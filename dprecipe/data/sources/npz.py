"""`npz`: arrays in a NumPy archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.archive import is_integer, opened
from dprecipe.data.facts import target
from dprecipe.data.files import locate
from dprecipe.data.raw import Raw, channels_first, class_labels, number_labels, span, unlabelled
from dprecipe.data.schema import Npz, PublicNpz
from dprecipe.data.table import name_texts
from dprecipe.faults import DataFault

SAVE = "save it with numpy.savez_compressed(path, features=…, labels=…)"


def read(source: Npz | PublicNpz, root: Path, name_column: str | None) -> Raw:
    """The selected records: features uint8 or float32, the texts of `name_column`, and labels: in [0, classes), or
    mapped from their range to [-1, 1].

    Raises:
        DataFault: the file is missing, no archive, holds Python objects, or is not what the recipe declares.
    """
    file = locate(source.path, root)
    with opened(file, SAVE) as archive:
        features = archive.array(source.features, source.shape, "numbers", _is_number)
        labels: NDArray[Any] = unlabelled(len(features))
        if isinstance(source, Npz):
            expected, accepts = ("integers", is_integer) if source.range is None else ("numbers", _is_number)
            labels = archive.array(source.labels, (), expected, accepts)
        names = None if name_column is None else archive.array(name_column, (), "texts or integers", _is_id)
    for name, array in ((source.labels, labels), (name_column, names)):
        if array is not None and len(array) != len(features):
            raise DataFault(
                f"{file}: {source.features!r} has {len(features)} records, {name!r} has {len(array)}",
                "give each array one entry a record",
            )
    part = span(source.records, len(features), file.name)
    chosen = features[part]
    if chosen.dtype != np.uint8:
        with np.errstate(over="ignore"):  # too large becomes infinite; such a record contributes nothing
            chosen = chosen.astype(np.float32)
    labels = labels[part]
    if isinstance(source, Npz):
        what, found = f"{file.name}, {source.labels!r}", target(source)
        if found is None:
            labels = class_labels(labels, source.classes or 0, what, part.start)
        else:
            labels = number_labels(labels, found, what, part.start)
    texts = None
    if names is not None and name_column is not None:
        texts = tuple(name_texts(names[part].tolist(), name_column, lambda row: _place(file, part.start + row)))
    return Raw(channels_first(chosen), labels, texts)


def _place(file: Path, record: int) -> str:
    return f"{file.name}, record {record} (counted from 0)"


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf"


def _is_id(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuU"
