"""Arrays in a NumPy archive (.npz). Pickles are refused: a data file never runs code."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dprecipe.data.files import GZIP_LIMIT, READ_ERRORS, unreadable
from dprecipe.faults import DataFault

_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
_ERRORS = (*READ_ERRORS, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""What reading a damaged or encrypted archive can raise."""


@final
class Archive:
    """An open archive; made by `opened`."""

    def __init__(self, archive: zipfile.ZipFile, file: Path, save: str) -> None:
        self._archive = archive
        self._file = file
        self._save = save

    def array(
        self, name: str, shape: tuple[int | None, ...], expected: str, accepts: Callable[[np.dtype[Any]], bool]
    ) -> NDArray[Any]:
        """An array of one entry a record, whose header has been read and accepted before its values are.

        `shape` is that of an entry, None where any length will do; `expected` names the types that it `accepts`.

        Raises:
            DataFault: there is none, it holds Python objects, or is of another shape or type.
        """
        file, member = self._file, f"{name}.npy"
        if member not in self._archive.namelist():
            raise DataFault(f"{file}: has no array {name!r}", self._save)
        with self._archive.open(member) as stream:
            header = _HEADERS.get(npy.read_magic(stream))
            if header is None:
                raise DataFault(f"{file}: array {name!r} is in a format this version does not read", self._save)
            dims, fortran, dtype = header(stream)
            if dtype.hasobject:
                raise DataFault(
                    f"{file}: array {name!r} holds Python objects (a pickle), which could run code",
                    f"{self._save} as {expected}",
                )
            if not accepts(dtype):
                raise DataFault(
                    f"{file}: array {name!r} holds {dtype}, expected {expected}", f"{self._save} as {expected}"
                )
            if len(dims) != 1 + len(shape) or any(
                size not in (None, found) for size, found in zip(shape, dims[1:], strict=True)
            ):
                sizes = "".join(f", {'any number' if size is None else size}" for size in shape)
                raise DataFault(
                    f"{file}: array {name!r} has shape {list(dims)}, expected [records{sizes}]",
                    "declare the shape that the file has, or store one entry a record",
                )
            size = math.prod(dims) * dtype.itemsize
            if min(dims) < 0 or size > self._archive.getinfo(member).compress_size * GZIP_LIMIT:
                raise DataFault(f"{file}: array {name!r} ends before the {dims[0]} records of its header", self._save)
            content = stream.read(size + 1)
            if len(content) != size:
                raise DataFault(
                    f"{file}: array {name!r} does not end with the {dims[0]} records of its header", self._save
                )
        return np.frombuffer(content, dtype=dtype).reshape(dims, order="F" if fortran else "C")


@contextmanager
def opened(file: Path, save: str) -> Iterator[Archive]:
    """The archive; `save` says how one of the right kind is written.

    Raises:
        DataFault: the file is no archive, or is damaged, where that shows.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            yield Archive(archive, file, save)
    except zipfile.BadZipFile as error:
        raise DataFault(f"{file}: is no NumPy archive (.npz), or is damaged", save) from error
    except _ERRORS as error:
        raise unreadable(file, error) from error


def is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu"
