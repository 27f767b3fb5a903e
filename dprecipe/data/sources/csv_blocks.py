"""Blocks of plain lines of a CSV file, split and parsed by pyarrow.

A block is plain if there is only one way to split it: a line is a row, lines end with LF or CRLF, none is blank, each
has as many fields as the header, and quotes enclose whole fields without quotes in them. Whatever else a file holds is
read by `read_csv`, which decides what a file means and what is wrong with it: here, nothing is ever refused.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.values import CodedTexts, Numbers, Values
from dprecipe.libraries import importing_libraries

BLOCK_BYTES = 4 << 20
"""Files that are shorter are not worth the import."""
MAX_FIELD_BYTES = 131_072
"""Longest field that Python's reader accepts; only a longer line can hold a longer field."""


@dataclass(frozen=True, slots=True)
class SplitBlock:
    """The declared columns of some lines."""

    columns: Mapping[str, Values]
    rows: int


def read_lines(stream: BinaryIO, max_line: int) -> bytes:
    """Returns the next lines of a file, whole but for one of more than `max_line` bytes."""
    block = stream.read(BLOCK_BYTES)
    return block if len(block) < BLOCK_BYTES else block + stream.readline(max_line + 1)


@final
class BlockSplitter:
    """Splits blocks of lines of one file.

    pyarrow reads numbers as such while it splits. Where one of them is none, it refuses the block, and columns are read
    as texts first: for the block, and in those after it for the columns that were none. A text is the same number
    either way, so what is learned decides nothing but time.
    """

    def __init__(self, delimiter: str, width: int, positions: Mapping[str, int], numeric: Collection[str]) -> None:
        """`width`: fields of a line; `positions`: of the columns that are read; `numeric`: which may become numbers."""
        self._delimiter, self._positions, self._numeric = delimiter, positions, frozenset(numeric)
        self._fields = [str(position) for position in range(width)]
        self._mixed: set[str] = set()
        """Columns that may become numbers, and held something else."""

    def split(self, block: bytes) -> SplitBlock | None:
        """Returns the columns of some lines: numbers where all of a column can be read as such, else texts. None if the
        block is not plain.
        """
        if not _is_plain(block, self._delimiter):
            return None
        direct = self._numeric - self._mixed
        table = self._read(block, direct) if direct else None
        if table is None:
            direct = frozenset()
            table = self._read(block, direct)
        if table is None:
            return None
        columns: dict[str, Values] = {}
        for name, position in self._positions.items():
            column = _whole(table.column(str(position)))
            numbers = _finite(column) if name in direct else None
            if numbers is None and name in self._numeric:
                if name in direct:  # nan or infinite
                    self._mixed.add(name)
                    return self.split(block)
                numbers = _parse(column)
                if numbers is None:
                    self._mixed.add(name)
            columns[name] = _coded(column) if numbers is None else numbers
        return SplitBlock(columns, table.num_rows)

    def _read(self, block: bytes, direct: frozenset[str]) -> Any:
        """Returns the block as a table: numbers in the columns `direct`, texts in others that may become numbers, and
        texts by their numbers in a dictionary. None where pyarrow refuses.
        """
        with importing_libraries("a block of lines"):
            import pyarrow as pa
            from pyarrow import csv

        kinds = dict.fromkeys(self._fields, pa.dictionary(pa.int32(), pa.string()))
        for name in self._numeric & self._positions.keys():
            kinds[str(self._positions[name])] = pa.float64() if name in direct else pa.string()
        try:
            return csv.read_csv(
                pa.BufferReader(block),
                csv.ReadOptions(use_threads=False, block_size=len(block), column_names=self._fields),
                csv.ParseOptions(delimiter=self._delimiter, double_quote=False, ignore_empty_lines=False),
                csv.ConvertOptions(
                    include_columns=sorted({str(position) for position in self._positions.values()}),
                    column_types=kinds,
                    null_values=[""],
                    strings_can_be_null=False,
                ),
            ).combine_chunks()
        except pa.ArrowInvalid:
            return None


def _is_plain(block: bytes, delimiter: str) -> bool:
    if b"\0" in block or block.startswith(codecs.BOM_UTF8):
        return False  # pyarrow takes a mark of byte order off each block: only a file's first is none of its text
    carriage_returns = b"\r" in block
    if carriage_returns and block.count(b"\r") != block.count(b"\r\n"):
        return False
    content = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    lengths = np.diff(ends, prepend=-1, append=len(block))
    if int(lengths.max()) > MAX_FIELD_BYTES:
        return False
    blank = lengths[:-1] == 1  # a search for two line ends in a row takes many times as long
    if carriage_returns:
        blank |= (lengths[:-1] == 2) & (content[ends - 1] == ord("\r"))
    if blank.any():
        return False
    return b'"' not in block or _is_plainly_quoted(content, ends, delimiter)


def _is_plainly_quoted(content: NDArray[np.uint8], ends: NDArray[np.intp], delimiter: str) -> bool:
    """Returns True if quotes come in pairs, each around a whole field of one line."""
    quotes = np.flatnonzero(content == ord('"'))
    if len(quotes) % 2 != 0:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    if not np.array_equal(np.searchsorted(ends, opening), np.searchsorted(ends, closing)):
        return False  # a line ends in between
    padded = np.concatenate([np.frombuffer(b"\n", np.uint8), content, np.frombuffer(b"\n", np.uint8)])
    before, after = padded[opening], padded[closing + 2]
    between = np.array([ord(delimiter), ord("\n")], np.uint8)
    return bool(np.isin(before, between).all() and np.isin(after, [*between, ord("\r")]).all())


def _whole(column: Any) -> Any:
    """Returns a column of one chunk or of none as an array."""
    return column.chunk(0) if column.num_chunks else column.combine_chunks()


def _coded(column: Any) -> CodedTexts:
    encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    return CodedTexts(encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64))


def _finite(column: Any) -> Numbers | None:
    """Returns numbers, nulls masked; None if one is not finite."""
    if not column.null_count:
        values = column.to_numpy()
        return np.ma.MaskedArray(values) if np.isfinite(values).all() else None
    missing = column.is_null().to_numpy(zero_copy_only=False)
    values = column.fill_null(0.0).to_numpy()
    return np.ma.MaskedArray(values, missing) if np.isfinite(values).all() else None


def _parse(column: Any) -> Numbers | None:
    """Texts as finite numbers, empty ones masked; None if one is none."""
    with importing_libraries("a block of lines"):
        import pyarrow as pa
        import pyarrow.compute as compute

    try:
        return _finite(compute.cast(compute.if_else(compute.equal(column, ""), None, column), pa.float64()))
    except pa.ArrowInvalid:
        return None
