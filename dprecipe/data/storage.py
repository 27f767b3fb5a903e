"""Storage for records while a source is read: in memory, or in files that are mapped into memory.

A file that is mapped takes no memory of its own: the system reads a page of it when it is used, and forgets the page
when memory is short. Files are either kept (`dprecipe.data.copies`) or have no name: then nothing of them is left on
the disk, however the process ends.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast, final, overload

import numpy as np
from numpy.typing import NDArray

from dprecipe.faults import DataFault

IN_MEMORY_BYTES = 1 << 30
"""Size above which a part is put into a file."""
WRITE_BYTES = 1 << 20
OpenFile = Callable[[str], BinaryIO]
"""Opens an empty file for a part of the records, by the part's name; to be read and written."""


def temporary_folder() -> Path:
    """Returns the folder of files without a name: `$TMPDIR`, else `/var/tmp`.

    `/var/tmp` is on a disk even where `/tmp` is in memory.
    """
    places = (os.environ.get("TMPDIR", ""), "/var/tmp")
    usable = (Path(place) for place in places if place and os.access(place, os.W_OK | os.X_OK))
    return next((place for place in usable if place.is_dir()), Path(tempfile.gettempdir()))


def open_nameless(part: str = "") -> BinaryIO:
    """Returns a file without a name, which its owner alone can read and which is gone when it is not used. Raises
    `OSError`.
    """
    return cast(BinaryIO, tempfile.TemporaryFile(dir=temporary_folder()))


@final
@dataclass(frozen=True, slots=True)
class Storage:
    """Storage for parts of records: memory up to `limit` bytes a part, beyond that a file that `open_file` opens.

    `limit` is a public number where the number of records is protected: infinite or 0, as the *declared* size says.
    """

    limit: float = math.inf
    open_file: OpenFile = open_nameless
    folder: Path | None = None
    """Folder of the files, for messages; None means `temporary_folder`."""
    expected: int = 0
    """Records that are expected, a public number: memory for this many is taken at once, and used as they come."""

    def rows(self, part: str) -> RowWriter:
        """Returns a part with one row a record."""
        return RowWriter(part, self)

    def texts(self, part: str) -> TextWriter:
        """Returns a part of texts."""
        return TextWriter(part, self)


SPILLING = Storage(IN_MEMORY_BYTES)
"""Memory, as long as it is little."""


@final
class RowWriter:
    """Rows (N, …), a chunk at a time. The first chunk decides their shape and type."""

    def __init__(self, part: str, storage: Storage) -> None:
        self._part, self._storage = part, storage
        self._chunks: list[NDArray[Any]] = []
        self._array: NDArray[Any] | None = None
        self._file: BinaryIO | None = None
        self._form: tuple[tuple[int, ...], np.dtype[Any]] | None = None
        self.count = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Appends rows (B, …), which are not changed later.

        Raises:
            DataFault: the disk refuses.
            ValueError: they are not of the shape and type of those before.
        """
        form, first = (rows.shape[1:], rows.dtype), self.count
        if self._form is None:
            self._form, expected = form, self._storage.expected
            if expected * _row_bytes(form) > self._storage.limit:
                self._file = open_part(self._storage, self._part)
            elif 0 < expected * _row_bytes(form) <= IN_MEMORY_BYTES:
                self._array = np.empty((expected, *form[0]), form[1])
        if form != self._form:
            raise ValueError(f"rows of {form}, after rows of {self._form}")
        self.count += len(rows)
        if self._array is not None and self.count <= len(self._array):
            self._array[first : self.count] = rows
            return
        if self._array is not None:
            self._chunks, self._array = [self._array[:first]], None
        if self._file is None and self.count * _row_bytes(form) > self._storage.limit:
            self._file = open_part(self._storage, self._part)
            for chunk in self._chunks:
                write_part(self._file, chunk, self._storage)
            self._chunks.clear()
        if self._file is None:
            self._chunks.append(rows)
        else:
            write_part(self._file, rows, self._storage)

    def finish(self, empty: NDArray[Any]) -> NDArray[Any]:
        """Returns all rows; `empty`: what they are where there was no chunk. Rows in a file are mapped, and what is
        written to the array does not reach the file.
        """
        if self._form is None:
            return empty
        shape, dtype = self._form
        if self._file is not None:
            with self._file as file:
                return map_array(file, (self.count, *shape), dtype)
        if self._array is not None:
            return self._array[: self.count]
        if len(self._chunks) == 1:
            return self._chunks[0]
        result = np.empty((self.count, *shape), dtype)
        start, self._chunks = 0, self._chunks[::-1]
        while self._chunks:  # each is released once it is copied
            chunk = self._chunks.pop()
            result[start : start + len(chunk)] = chunk
            start += len(chunk)
        return result

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


@final
class TextWriter:
    """Texts, a chunk at a time."""

    def __init__(self, part: str, storage: Storage) -> None:
        self._part, self._storage = part, storage
        self._texts: list[str] = []
        self._bytes = self._total = 0
        self._file: BinaryIO | None = None
        self._ends = storage.rows(f"{part}.ends")

    def append(self, texts: Sequence[str]) -> None:
        """Appends texts.

        Raises:
            DataFault: the disk refuses.
        """
        self._texts += texts
        self._bytes += 64 * len(texts) + sum(map(len, texts))
        if self._bytes > (self._storage.limit if self._file is None else WRITE_BYTES):
            self._flush()

    def finish(self) -> Sequence[str]:
        """Returns all texts: a tuple, or mapped from a file."""
        if self._file is None:
            return tuple(self._texts)
        self._flush()
        with self._file as file:
            content = map_array(file, (self._total,), np.dtype(np.uint8))
        return MappedTexts(content, self._ends.finish(np.zeros(0, np.int64)))

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        if self._file is None:
            self._file = open_part(self._storage, self._part)
        content, ends = text_arrays(self._texts)
        ends = ends + self._total
        write_part(self._file, content, self._storage)
        self._ends.append(ends)
        self._total = int(ends[-1]) if len(ends) else self._total
        self._texts, self._bytes = [], 0


@final
class MappedTexts(Sequence[str]):
    """Texts in a file: UTF-8, one after the other, and where each ends."""

    def __init__(self, content: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._content, self._ends = content, ends

    @property
    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The bytes of all texts, and where each ends."""
        return self._content, self._ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return tuple(self[row] for row in range(len(self))[index])
        row = range(len(self))[index]
        first = int(self._ends[row - 1]) if row else 0
        return self._content[first : int(self._ends[row])].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))


def text_arrays(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns the bytes of all texts, UTF-8, and where each ends."""
    if isinstance(texts, MappedTexts):
        return texts.arrays
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def _row_bytes(form: tuple[tuple[int, ...], np.dtype[Any]]) -> int:
    shape, dtype = form
    return math.prod(shape) * dtype.itemsize


def open_part(storage: Storage, part: str) -> BinaryIO:
    """Returns the file of a part.

    Raises:
        DataFault: the disk refuses.
    """
    try:
        return storage.open_file(part)
    except OSError as error:
        raise disk_fault(error, storage.folder) from error


def write_part(file: BinaryIO, rows: NDArray[Any], storage: Storage) -> None:
    """Writes an array's bytes, in order.

    Raises:
        DataFault: the disk refuses.
    """
    try:
        if rows.size:
            file.write(np.ascontiguousarray(rows).data.cast("B"))
    except OSError as error:
        raise disk_fault(error, storage.folder) from error


def map_array(file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns a file's content as an array, mapped; its own writes stay in memory.

    Raises:
        DataFault: the disk refuses.
        ValueError: the file is too short.
    """
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    try:
        file.flush()
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise disk_fault(error) from error
    return np.frombuffer(mapped, dtype).reshape(shape)


def disk_fault(error: OSError, folder: Path | None = None) -> DataFault:
    """Returns the fault of a disk that does not take what is read; `folder`: of copies that are kept."""
    place, other = (temporary_folder(), "in $TMPDIR") if folder is None else (folder, "as runtime.prepared")
    return DataFault(
        f"the records can't be put into a file: {error.strerror or 'the disk refuses'}",
        f"free space in {place}, or name another folder {other}; nothing was spent, and no part of the file is left",
    )
