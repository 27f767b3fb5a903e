"""Files of codebooks: untrusted archives of arrays, read within limits."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.encoded.codebook import Codebook, CodebookError, check_shape, fit_codebook, rank_starts

UNREADABLE = (
    *(OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)
"""Exceptions that a damaged or hostile archive of arrays can raise; an array declares its own size."""
MAX_FILE = 1 << 30
"""Upper bound on the unpacked size of a codebook file, in bytes."""


def load_codebook(path: Path, sizes: Sequence[int]) -> Codebook:
    """Reads a codebook file: the content of `Codebook.to_bytes`, or an array `codewords` (n, D), magnitudes ascending.

    Raises:
        CodebookError: the file is not a codebook, has other sizes, or is signed or unsorted.
    """
    arrays = _read_arrays(path)
    if "codewords" in arrays:
        codewords = arrays["codewords"]
        if codewords.dtype.kind != "f":
            raise CodebookError("file", f"{path.name}: codewords have to be floating-point numbers")
        _check_ascending(codewords, sizes)
        return fit_codebook(codewords, sizes)
    try:
        result = tuple(int(size) for size in arrays["sizes"])
        ranks = tuple(np.asarray(arrays[f"ranks_{i}"], dtype=np.int64) for i in range(len(result)))
        tables = tuple(arrays[f"levels_{i}"] for i in range(len(result)))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CodebookError("file", f"{path.name} holds neither codewords nor levels") from None
    if result != tuple(sizes):
        raise CodebookError(
            "shape",
            f"{path.name} is for groups of {_format_sizes(result)} coordinates, this recipe needs "
            f"{_format_sizes(sizes)}",
        )
    words = len(tables[0]) if tables[0].ndim else 0
    for size, firsts, table in zip(result, ranks, tables, strict=True):
        expected = rank_starts(size)
        if (
            not words
            or table.dtype != np.uint16
            or table.shape != (words, len(expected))
            or not np.array_equal(firsts, expected)
        ):
            raise CodebookError("file", f"{path.name}: tables of the wrong kind or shape")
        if (table[:, 1:] < table[:, :-1]).any():
            raise CodebookError("unsorted", f"{path.name}: a codeword is not ascending")
    if not all(any(table[i].any() for table in tables) for i in range(words)):
        raise CodebookError("file", f"{path.name}: a codeword of zeros")
    return Codebook(result, ranks, tables)


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        if not path.is_file():
            raise CodebookError("file", f"there is no file {path.name} in {path.parent.name or 'this folder'}")
        if not zipfile.is_zipfile(path):
            raise CodebookError("file", f"{path.name} is not an archive of arrays (.npz)")
        with zipfile.ZipFile(path) as archive:
            # zipfile reads no more of a member than its declared size.
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MAX_FILE:
            raise CodebookError("file", f"{path.name} unpacks to {unpacked:,} bytes; the limit is {MAX_FILE:,}")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except CodebookError:
        raise
    except UNREADABLE:
        raise CodebookError("file", f"{path.name} is damaged, or holds more than arrays") from None
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise CodebookError("file", f"{path.name} holds more than arrays")
    return arrays


def _check_ascending(codewords: NDArray[Any], sizes: Sequence[int]) -> None:
    check_shape(codewords, sizes)
    if (codewords < 0).any():
        raise CodebookError("signed", "a codeword has negative entries, which bound no magnitude")
    start = 0
    for size in sizes:
        part = codewords[:, start : start + size]
        if (part[:, 1:] < part[:, :-1]).any():
            raise CodebookError("unsorted", "a codeword is not ascending: codewords are compared rank by rank")
        start += size


def _format_sizes(sizes: Sequence[int]) -> str:
    text = " + ".join(f"{size:,}" for size in sizes[:6]) or "no"
    return text if len(sizes) <= 6 else f"{text} + …"
