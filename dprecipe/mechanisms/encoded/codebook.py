"""Codebooks: public vectors, ascending magnitudes, that bound an encoded gradient rank by rank; and their files.

A codeword is a step function of the rank: neighbouring ranks share a level, with at most `LEVELS` levels in a group; in
a group of at most `LEVELS` coordinates each rank has its own level. So a codebook is a small table for any number of
parameters, its envelope and its accounting are exact, and an encoder needs ranks no finer than the levels.

All values are stored as integers, so that two machines agree on them to the last bit.

Legend: n codewords, D coordinates of a group, K levels.
Source: Nasr, Shokri and Houmansadr 2020, section 3.1; docs/explanation/encoding.md lists what was repaired.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.encoded.box import LEVELS, MAX_DIMENSION, MAX_WORDS, GradientBox
from dprecipe.privacy.rounding import round_up

MAX_LEVEL = 65535
"""The largest level of a codeword, as a whole number."""
WORDS_PER_PART = 2_000
"""Number of codewords that are processed at once."""
MAX_TABLE = 1 << 26
"""Upper bound on the size of a codebook's table, in bytes."""


class CodebookError(ValueError):
    """A codebook that can't be used. `reason`: "signed", "unsorted", "shape" or "file"."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, eq=False)
class CodewordGroup:
    """Coordinates `start` to `start + size` of the flat gradient, ranked and clipped separately from other groups."""

    start: int
    size: int
    ranks: NDArray[np.int64]
    """(K,): the first rank of each level; ranks count from 0, the smallest magnitude."""
    levels: NDArray[np.float64]
    """(n, K): the bound at these ranks; each row ascending, >= 0. Over all groups a codeword has L2 norm 1."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """(K,): the number of ranks in each level."""
        return np.diff(np.append(self.ranks, self.size))


@dataclass(frozen=True, eq=False)
class Codebook:
    """A codebook: n codewords of L2 norm 1, as whole numbers."""

    sizes: tuple[int, ...]
    """(G,): coordinates of each group."""
    ranks: tuple[NDArray[np.int64], ...]
    whole: tuple[NDArray[np.uint16], ...]
    """One (n, K) table for each group."""

    @property
    def words(self) -> int:
        return len(self.whole[0])

    @property
    def dimension(self) -> int:
        return sum(self.sizes)

    @cached_property
    def groups(self) -> tuple[CodewordGroup, ...]:
        scales_n = 1 / np.sqrt(self._squares_n.astype(np.float64))
        starts = np.concatenate([[0], np.cumsum(self.sizes)]).tolist()
        return tuple(
            CodewordGroup(start, size, ranks, table * scales_n[:, None])
            for start, size, ranks, table in zip(starts, self.sizes, self.ranks, self.whole, strict=False)
        )

    @cached_property
    def _squares_n(self) -> NDArray[np.uint64]:
        """Squared norms in whole numbers; at most 1e9 · 2^32, which 64 bits hold."""
        total_n = np.zeros(self.words, dtype=np.uint64)
        for size, ranks, table in zip(self.sizes, self.ranks, self.whole, strict=True):
            counts_K = np.diff(np.append(ranks, size)).astype(np.uint64)
            for part in _split_words(len(table)):
                total_n[part] += (table[part].astype(np.uint64) ** 2) @ counts_K
        return total_n

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the whole codebook."""
        content = hashlib.sha256(b"dprecipe codebook v1")
        for size, ranks, table in zip(self.sizes, self.ranks, self.whole, strict=True):
            content.update(np.array([size, len(ranks), len(table)], dtype="<u8").tobytes())
            content.update(ranks.astype("<i8").tobytes() + table.astype("<u2").tobytes())
        return "sha256:" + content.hexdigest()

    @cached_property
    def box(self) -> GradientBox:
        groups = []
        scales_n = 1 / np.sqrt(self._squares_n.astype(np.float64))
        for size, ranks, table in zip(self.sizes, self.ranks, self.whole, strict=True):
            parts = [(table[part] * scales_n[part, None]).max(axis=0) for part in _split_words(len(table))]
            counted: dict[float, int] = {}
            counts = np.diff(np.append(ranks, size)).tolist()
            for bound, count in zip(np.max(parts, axis=0).tolist(), counts, strict=True):
                rounded = min(1.0, round_up(bound, 7))
                counted[rounded] = counted.get(rounded, 0) + count
            groups.append((size, tuple(sorted(counted.items()))))
        return GradientBox(self.digest, self.words, tuple(groups))

    def to_bytes(self) -> bytes:
        """Returns the content of a file that `load_codebook` reads."""
        content: dict[str, Any] = {"sizes": np.array(self.sizes, dtype=np.int64)}
        for index, (ranks, table) in enumerate(zip(self.ranks, self.whole, strict=True)):
            content |= {f"ranks_{index}": ranks, f"levels_{index}": table}
        file = io.BytesIO()
        np.savez_compressed(file, **content)
        return file.getvalue()


def draw_gaussian_codebook(sizes: Sequence[int], words: int, floor: float, seed: int) -> Codebook:
    """Draws codewords of |N(0, 1)| entries, ascending in each group, with L2 norm 1; entries below `floor` become zero.

    The order statistics are drawn directly (Rényi's representation: uniforms are ratios of sums of exponentials), so
    ten million coordinates cost the same as a thousand.

    *Guarantees*: the result depends on the arguments only.
    Source: Nasr et al. 2020, section 5; Rényi 1953.

    Raises:
        CodebookError: the table would be too large.
    """
    from scipy import special

    tables_ranks = [rank_starts(size) for size in sizes]
    _check_limits(words, sum(map(len, tables_ranks)), sum(sizes))
    random = np.random.Generator(np.random.PCG64(seed))
    tables = []
    for size, ranks in zip(sizes, tables_ranks, strict=True):
        middles = (ranks + np.append(ranks[1:], size) - 1) // 2
        gaps = np.diff(np.concatenate([[-1], middles, [size]])).astype(np.float64)
        levels = np.empty((words, len(ranks)))
        for part in _split_words(words):  # the stream is the same as if all were drawn at once
            uniforms = random.random((part.stop - part.start, len(gaps))) + 2.0**-54
            # A sum of g exponentials: exact for one, Wilson and Hilferty's cube for more.
            cubes = gaps * (1 - 1 / (9 * gaps) + special.ndtri(uniforms) / (3 * np.sqrt(gaps))) ** 3
            sums = np.where(gaps == 1, -np.log(uniforms), np.maximum(cubes, 1e-9))
            above = np.cumsum(sums[:, ::-1], axis=1)[:, ::-1]  # from each middle rank to the end
            magnitudes = -special.ndtri(above[:, 1:] / above[:, :1] / 2)
            levels[part] = np.where(magnitudes < floor, 0.0, magnitudes)
        tables.append(levels)
    return _round_levels(tuple(sizes), tuple(tables_ranks), tables)


def fit_codebook(codewords: NDArray[np.floating[Any]], sizes: Sequence[int]) -> Codebook:
    """Returns the codebook nearest to vectors (n, D): magnitudes are sorted in each group, norms are scaled to 1.

    Raises:
        CodebookError: no vector, a wrong length, values that are not finite, or a vector of zeros.
    """
    return fit_in_batches([codewords], sizes)


def fit_in_batches(batches: Iterable[NDArray[np.floating[Any]]], sizes: Sequence[int]) -> Codebook:
    """Fits a codebook, as `fit_codebook` does, to vectors that arrive in arrays (n, D); only one array is in memory at
    a time.

    Raises:
        CodebookError: as `fit_codebook`; or more vectors than the limit of a codebook.
    """
    ranks = tuple(rank_starts(size) for size in sizes)
    levels: list[list[NDArray[np.float64]]] = [[] for _ in sizes]
    words = 0
    for codewords in batches:
        check_shape(codewords, sizes)
        words += len(codewords)
        _check_limits(words, sum(map(len, ranks)), sum(sizes))
        for row_D in codewords:
            magnitudes_D = np.abs(row_D).astype(np.float64)
            magnitudes_D /= magnitudes_D.max() or 1.0  # squares of extreme values would leave the range
            start = 0
            for size, firsts, table in zip(sizes, ranks, levels, strict=True):
                squares_D = np.sort(magnitudes_D[start : start + size]) ** 2
                counts_K = np.diff(np.append(firsts, size))
                table.append(np.sqrt(np.add.reduceat(squares_D, firsts) / counts_K))
                start += size
    if not words:
        raise CodebookError("shape", "not one codeword")
    return _round_levels(tuple(sizes), ranks, [np.stack(table) for table in levels])


def rank_starts(size: int) -> NDArray[np.int64]:
    """Returns the first rank of each level in a group of `size` coordinates, (K,). In groups of up to `LEVELS`
    coordinates each rank is a level; in larger ones, the quantiles of |N(0, 1)| at the starts are about equally spaced,
    and the largest ranks are single."""
    if size <= LEVELS:
        return np.arange(size)
    high = 1.0
    while size * math.erfc(high / math.sqrt(2)) > 0.5:
        high += 1 / 64
    starts = {0, size - 1}
    for step in range(1, LEVELS):
        starts.add(size - 1 - math.floor(size * math.erfc(high * step / LEVELS / math.sqrt(2))))
    return np.array(sorted(start for start in starts if start >= 0))


def _round_levels(
    sizes: tuple[int, ...], ranks: tuple[NDArray[np.int64], ...], levels: Sequence[NDArray[np.float64]]
) -> Codebook:
    largest_n = np.max([table.max(axis=1) for table in levels], axis=0)
    if not (largest_n > 0).all():
        raise CodebookError("shape", "a codeword of zeros")
    factors_n, whole = MAX_LEVEL / largest_n[:, None], []
    for table in levels:
        rounded = np.empty(table.shape, dtype=np.uint16)
        for part in _split_words(len(table)):
            rounded[part] = np.rint(table[part] * factors_n[part])
        whole.append(rounded)
    return Codebook(sizes, ranks, tuple(whole))


def _split_words(words: int) -> list[slice]:
    """Returns slices of a few codewords each, which bound the memory of temporary arrays."""
    return [slice(start, min(start + WORDS_PER_PART, words)) for start in range(0, words, WORDS_PER_PART)]


def check_shape(codewords: NDArray[Any], sizes: Sequence[int]) -> None:
    if codewords.ndim != 2 or codewords.shape[1] != sum(sizes):
        raise CodebookError(
            "shape", f"expected codewords of {sum(sizes):,} coordinates, got an array of shape {codewords.shape}"
        )
    if not np.isfinite(codewords).all():
        raise CodebookError("shape", "codewords with values that are not finite")


def _check_limits(words: int, levels: int, dimension: int) -> None:
    if dimension > MAX_DIMENSION or words > MAX_WORDS or 2 * words * levels > MAX_TABLE:
        raise CodebookError("shape", f"{words:,} codewords of {levels:,} levels exceed the limit of a codebook")


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
