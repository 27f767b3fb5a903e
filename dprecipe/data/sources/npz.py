"""`npz`: arrays in a NumPy archive. Pickles are refused: a data file never runs code."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dprecipe.data.files import GZIP_LIMIT, READ_ERRORS, locate, unreadable
from dprecipe.data.raw import Raw, channels_first, class_labels, span, unlabelled
from dprecipe.data.schema import Npz, PublicNpz
from dprecipe.data.table import name_texts
from dprecipe.faults import DataFault

SAVE = "save it with numpy.savez_compressed(path, features=…, labels=…)"
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
_ERRORS = (*READ_ERRORS, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""What reading a damaged or encrypted archive can raise."""


def read(source: Npz | PublicNpz, root: Path, name_column: str | None) -> Raw:
    """The selected records: features uint8 or float32, labels in [0, classes), the texts of `name_column`.

    Raises:
        DataFault: the file is missing, no archive, holds Python objects, or is not what the recipe declares.
    """
    file = locate(source.path, root)
    try:
        with zipfile.ZipFile(file) as archive:
            features = _array(archive, source.features, file, source.shape, "uint8, float32 or float64", _is_feature)
            labels = unlabelled(len(features))
            if isinstance(source, Npz):
                labels = _array(archive, source.labels, file, (), "integers", _is_integer)
            names = None if name_column is None else _array(archive, name_column, file, (), "texts or integers", _is_id)
    except zipfile.BadZipFile as error:
        raise DataFault(f"{file}: is no NumPy archive (.npz), or is damaged", SAVE) from error
    except _ERRORS as error:
        raise unreadable(file, error) from error
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
        labels = class_labels(labels, source.classes, f"{file.name}, {source.labels!r}", part.start)
    texts = None
    if names is not None and name_column is not None:
        texts = tuple(name_texts(names[part].tolist(), name_column, lambda row: _place(file, part.start + row)))
    return Raw(channels_first(chosen), labels, texts)


def _array(
    archive: zipfile.ZipFile,
    name: str,
    file: Path,
    shape: tuple[int, ...],
    expected: str,
    accepts: Callable[[np.dtype[Any]], bool],
) -> NDArray[Any]:
    """An array whose header has been read and accepted before its values are."""
    member = f"{name}.npy"
    if member not in archive.namelist():
        raise DataFault(f"{file}: has no array {name!r}", SAVE)
    with archive.open(member) as stream:
        header = _HEADERS.get(npy.read_magic(stream))
        if header is None:
            raise DataFault(f"{file}: array {name!r} is in a format this version does not read", SAVE)
        dims, fortran, dtype = header(stream)
        if dtype.hasobject:
            raise DataFault(
                f"{file}: array {name!r} holds Python objects (a pickle), which could run code",
                f"{SAVE} as {expected}",
            )
        if not accepts(dtype):
            raise DataFault(f"{file}: array {name!r} holds {dtype}, expected {expected}", f"{SAVE} as {expected}")
        if len(dims) == 0 or dims[1:] != shape or dims[0] < 0:
            raise DataFault(
                f"{file}: array {name!r} has shape {list(dims)}, expected [records"
                + "".join(f", {size}" for size in shape)
                + "]",
                "declare the shape that the file has, or store one entry a record",
            )
        size = math.prod(dims) * dtype.itemsize
        if size > archive.getinfo(member).compress_size * GZIP_LIMIT:
            raise DataFault(f"{file}: array {name!r} ends before the {dims[0]} records of its header", SAVE)
        content = stream.read(size + 1)
        if len(content) != size:
            raise DataFault(f"{file}: array {name!r} does not end with the {dims[0]} records of its header", SAVE)
    return np.frombuffer(content, dtype=dtype).reshape(dims, order="F" if fortran else "C")


def _place(file: Path, record: int) -> str:
    return f"{file.name}, record {record} (counted from 0)"


def _is_feature(dtype: np.dtype[Any]) -> bool:
    return dtype == np.uint8 or dtype.kind == "f"


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu"


def _is_id(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuU"
