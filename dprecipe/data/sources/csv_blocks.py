"""Blocks of plain lines of a CSV file, split and parsed by pyarrow.

A block is plain if nobody can split it in two ways: a line is a row, lines end with LF or CRLF, none is blank, each has
as many fields as the header, and quotes enclose whole fields without quotes in them. Whatever else a file holds is read
by `read_csv`, which decides what a file means and what is wrong with it: here, nothing is ever refused.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.values import CodedTexts, Numbers, Values

BLOCK_BYTES = 4 << 20
"""Files that are shorter are not worth the import."""
MAX_FIELD_BYTES = 131_072
"""Of Python's reader; a line that is longer may have a longer field."""


@dataclass(frozen=True, slots=True)
class SplitBlock:
    """The declared columns of some lines."""

    columns: Mapping[str, Values]
    rows: int


def read_lines(stream: BinaryIO, max_line: int) -> bytes:
    """The next lines of a file, whole but for one of more than `max_line` bytes."""
    block = stream.read(BLOCK_BYTES)
    return block if len(block) < BLOCK_BYTES else block + stream.readline(max_line + 1)


def split_block(
    block: bytes, delimiter: str, width: int, positions: Mapping[str, int], numeric: Collection[str]
) -> SplitBlock | None:
    """The columns at `positions` of lines with `width` fields: texts, and numbers of those that are `numeric` where all
    of them can be read as such. None if the block is not plain."""
    if not _is_plain(block, delimiter):
        return None
    import pyarrow as pa
    from pyarrow import csv

    names = [str(position) for position in range(width)]
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(use_threads=False, block_size=len(block), column_names=names),
            csv.ParseOptions(delimiter=delimiter, double_quote=False, ignore_empty_lines=False),
            csv.ConvertOptions(
                include_columns=sorted({str(position) for position in positions.values()}),
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=False,
            ),
        ).combine_chunks()
    except pa.ArrowInvalid:
        return None
    texts = {name: _whole(table.column(str(position))) for name, position in positions.items()}
    return SplitBlock({name: _values(column, name in numeric) for name, column in texts.items()}, table.num_rows)


def _is_plain(block: bytes, delimiter: str) -> bool:
    if b"\0" in block or block.count(b"\r") != block.count(b"\r\n") or block.startswith(codecs.BOM_UTF8):
        return False  # pyarrow takes a mark of byte order off each block: only a file's first is none of its text
    if b"\n\n" in block or b"\n\r\n" in block or block.startswith((b"\n", b"\r\n")):
        return False
    content = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    lengths = np.diff(ends, prepend=-1, append=len(block))
    return int(lengths.max()) <= MAX_FIELD_BYTES and _is_plainly_quoted(content, ends, delimiter)


def _is_plainly_quoted(content: NDArray[np.uint8], ends: NDArray[np.intp], delimiter: str) -> bool:
    """Whether quotes come in pairs, each around a whole field of one line."""
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
    """A column of one chunk or of none as an array."""
    return column.chunk(0) if column.num_chunks else column.combine_chunks()


def _values(column: Any, numeric: bool) -> Values:
    if numeric:
        numbers = _numbers(column)
        if numbers is not None:
            return numbers
    encoded = column.dictionary_encode()
    return CodedTexts(encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64))


def _numbers(column: Any) -> Numbers | None:
    """Texts as finite numbers, empty ones masked; None if one is none."""
    import pyarrow as pa
    import pyarrow.compute as compute

    empty = compute.equal(column, "")
    missing = bool(compute.any(empty).as_py())
    try:
        numbers = compute.cast(compute.if_else(empty, "0", column) if missing else column, pa.float64())
    except pa.ArrowInvalid:
        return None
    values = numbers.to_numpy()
    if not np.isfinite(values).all():
        return None
    return np.ma.MaskedArray(values, empty.to_numpy(zero_copy_only=False) if missing else np.ma.nomask)
