"""Arrays in a NumPy archive (.npz). Pickles are refused: a data file never runs code."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast, final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dprecipe.data.files import GZIP_LIMIT, READ_ERRORS, read_exactly, skip_exactly, unreadable_fault
from dprecipe.data.words import Header
from dprecipe.faults import DataFault

_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
MAX_HEADER_BYTES = 10_000
"""Bytes of an array's header, as numpy reads it."""
CHUNK_BYTES = 16 << 20
"""Bytes of an array that are read at a time."""
_FORTRAN = 64 << 20
_ERRORS = (*READ_ERRORS, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""Exceptions that reading a damaged or encrypted archive can raise."""


@final
class Archive:
    """An open archive; made by `open_archive`."""

    def __init__(self, archive: zipfile.ZipFile, file: Path, save: str) -> None:
        self._archive = archive
        self._file = file
        self._save = save
        self.names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        """The names of its arrays."""
        self._known = Header(self.names)

    def dims(
        self, name: str, shape: tuple[int | None, ...] | None, expected: str, accepts: Callable[[np.dtype[Any]], bool]
    ) -> tuple[int, ...]:
        """Returns the dimensions in an array's header, records first; `shape`: None for any. Raises as `array` does for
        headers."""
        with self._open(name) as stream:
            return self._header(name, stream, shape, expected, accepts)[0]

    def array(
        self,
        name: str,
        shape: tuple[int | None, ...],
        expected: str,
        accepts: Callable[[np.dtype[Any]], bool],
        part: slice | None = None,
    ) -> NDArray[Any]:
        """Returns an array with one entry per record. Its header is read and checked before its values are unpacked.

        `shape`: of an entry, with None for any length; `expected`: names the types that `accepts` accepts. Only the
        values of `part` are returned, and nothing after it is unpacked.

        Raises:
            DataFault: there is no such array, it holds Python objects, or it has another shape or type.
        """
        chunks = list(self.chunks(name, shape, expected, accepts, part))
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def chunks(
        self,
        name: str,
        shape: tuple[int | None, ...],
        expected: str,
        accepts: Callable[[np.dtype[Any]], bool],
        part: slice | None = None,
    ) -> Generator[NDArray[Any], None, None]:
        """Reads as `array`, some records at a time, and at least one chunk."""
        file = self._file
        with self._open(name) as stream:
            dims, fortran, dtype = self._header(name, stream, shape, expected, accepts)
            part = slice(0, dims[0]) if part is None else part
            each, count = math.prod(dims[1:]) * dtype.itemsize, part.stop - part.start
            if fortran and dims[0] * each > 4 * count * each + _FORTRAN:
                raise DataFault(
                    f"{file}: array {name!r} is stored column by column, so part of it can't be read by itself",
                    "convert it with numpy.ascontiguousarray before saving it",
                )
            skip_exactly(stream, 0 if fortran else part.start * each)
            rows = dims[0] if fortran else max(1, CHUNK_BYTES // max(1, each))
            left = dims[0] if fortran else count
            while True:
                size = min(rows, left)
                content = read_exactly(stream, size * each)
                left -= size
                end = left == 0 and (fortran or part.stop == dims[0])
                if len(content) != size * each or (end and stream.read(1)):
                    raise DataFault(
                        f"{file}: array {name!r} does not end with the last record of its header", self._save
                    )
                values = np.frombuffer(content, dtype=dtype)
                if fortran:
                    yield values.reshape(dims, order="F")[part]
                else:
                    yield values.reshape(size, *dims[1:])
                if left == 0:
                    return

    def _member(self, name: str) -> zipfile.ZipInfo:
        """Returns the entry of an array."""
        places = self._known.places(name)
        if not places:
            present = self.names[:20]
            raise DataFault(
                f"{self._file}: has no array {name!r}" + (f"; its arrays are {', '.join(present)}" if present else ""),
                self._save,
            )
        return self._archive.getinfo(f"{self.names[places[0]]}.npy")

    @contextmanager
    def _open(self, name: str) -> Iterator[BinaryIO]:
        with self._archive.open(self._member(name)) as stream:
            yield cast(BinaryIO, stream)

    def _header(
        self,
        name: str,
        stream: BinaryIO,
        shape: tuple[int | None, ...] | None,
        expected: str,
        accepts: Callable[[np.dtype[Any]], bool],
    ) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        file = self._file
        version = npy.read_magic(stream)
        parse = _HEADERS.get(version)
        if parse is None:
            raise DataFault(f"{file}: array {name!r} is in a format that this version does not read", self._save)
        # The header's length is checked against a limit before the header is unpacked.
        length = stream.read(2 if version == (1, 0) else 4)
        if int.from_bytes(length, "little") > MAX_HEADER_BYTES:
            raise DataFault(f"{file}: array {name!r} has a header of more than {MAX_HEADER_BYTES:,} bytes", self._save)
        dims, fortran, dtype = parse(io.BytesIO(length + stream.read(int.from_bytes(length, "little"))))
        if dtype.hasobject:
            raise DataFault(
                f"{file}: array {name!r} holds Python objects (a pickle), which could run code",
                f"{self._save} as {expected}",
            )
        if not accepts(dtype):
            raise DataFault(f"{file}: array {name!r} holds {dtype}, expected {expected}", f"{self._save} as {expected}")
        shape = dims[1:] if shape is None else shape
        if len(dims) != 1 + len(shape) or any(
            size not in (None, result) for size, result in zip(shape, dims[1:], strict=True)
        ):
            sizes = "".join(f", {'any number' if size is None else size}" for size in shape)
            result = ", ".join(["records", *map(str, dims[1:])]) if dims else ""
            raise DataFault(
                f"{file}: array {name!r} has the shape [{result}], expected [records{sizes}]",
                "store one entry per record of that shape, or declare the shape that the file has",
            )
        size = math.prod(dims) * dtype.itemsize
        if min(dims) < 0 or size > self._member(name).compress_size * GZIP_LIMIT:
            raise DataFault(f"{file}: array {name!r} ends before the last record of its header", self._save)
        return dims, fortran, dtype


@contextmanager
def open_archive(file: Path, save: str) -> Iterator[Archive]:
    """Opens an archive; `save` says how to write a valid one.

    Raises:
        DataFault: the file is not an archive, or it is damaged.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            yield Archive(archive, file, save)
    except zipfile.BadZipFile as error:
        raise DataFault(f"{file}: is not a NumPy archive (.npz), or is damaged", save) from error
    except _ERRORS as error:
        raise unreadable_fault(file, error) from error


def is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu"
