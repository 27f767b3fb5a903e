"""`idx`: the format of MNIST (LeCun, Cortes, Burges), plain or gzipped.

A file is two zero bytes, a type code (0x08: unsigned byte), the number of dimensions, each dimension as a
big-endian 32-bit integer, and the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.collector import RecordCollector
from dprecipe.data.files import (
    GZIP_LIMIT,
    READ_ERRORS,
    is_gzip,
    locate_file,
    open_file,
    read_exactly,
    skip_exactly,
    unreadable_fault,
)
from dprecipe.data.raw import Raw, Reading, channels_first, class_labels, drop_labels, record_number
from dprecipe.data.sources.arrays import AnyIdx, Idx
from dprecipe.faults import DataFault

CHUNK_BYTES = 16 << 20
UNSIGNED_BYTE = 0x08
FORMAT = "expected an IDX file of unsigned bytes, plain or gzipped"


def read(source: AnyIdx, root: Path, reading: Reading) -> Raw:
    """Returns the selected records: images as uint8 (N, C, H, W) or (N, D), labels in [0, classes), or zeros.

    Raises:
        DataFault: a file is missing, damaged, not IDX, or not of the declared shape, length or classes.
    """
    images, labels = source.images, source.labels if isinstance(source, Idx) else None
    file = locate_file(images, root)
    label_file = None if labels is None else locate_file(labels, root)
    count = count_records(file, source.shape)
    if label_file is not None and count_records(label_file, ()) != count:
        raise DataFault(
            f"{images} and {labels} have different numbers of images and labels", "name the two files of one data set"
        )
    part = reading.span(source.records, count, images)
    collector, count = RecordCollector(reading), part.stop - part.start
    side = collector.choose({}, count, record_number)
    chosen = np.arange(count) if side is None else side
    numbers = drop_labels(count)
    if labels is not None and label_file is not None:
        content = np.concatenate(list(read_array(label_file, (), part)))[chosen]
        numbers = class_labels(content, source.classes, labels, reading.problems, part.start + chosen)
    start = 0
    for some in read_array(file, source.shape, part):
        first, end = np.searchsorted(chosen, (start, start + len(some)))
        rows = some if end - first == len(some) else some[chosen[first:end] - start]
        reading.counts.records += len(rows)
        collector.append(channels_first(rows), numbers[first:end])
        start += len(some)
    return collector.raw(np.empty(0, np.uint8))


def count_records(file: Path, shape: tuple[int, ...]) -> int:
    """Returns the number of records in the header of a file with this record shape."""
    try:
        with open_file(file) as stream:
            return _header(file, stream, shape)[0]
    except READ_ERRORS as error:
        raise unreadable_fault(file, error) from error


def _header(file: Path, stream: BinaryIO, shape: tuple[int, ...]) -> tuple[int, ...]:
    dims = _dimensions(file, stream)
    if dims[1:] != shape:
        raise DataFault(
            f"{file}: one record has shape {list(dims[1:])}, expected {list(shape)}",
            "name the right file (images and labels swapped?), or declare the shape that it has",
        )
    if math.prod(dims) > file.stat().st_size * (GZIP_LIMIT if is_gzip(file) else 1):
        raise _short(file)
    return dims


def read_array(file: Path, shape: tuple[int, ...], part: slice) -> Iterator[NDArray[np.uint8]]:
    """Records of an IDX file, each of this shape, some at a time and at least one chunk: (…, *shape).

    Data after them are checked only if they are the last records.

    Raises:
        DataFault: the file is damaged, or has another format or shape.
    """
    try:
        with open_file(file) as stream:
            dims, each = _header(file, stream, shape), math.prod(shape)
            skip_exactly(stream, part.start * each)
            left, rows = part.stop - part.start, max(1, CHUNK_BYTES // max(1, each))
            while True:
                size = min(rows, left)
                content = read_exactly(stream, size * each)
                if len(content) < size * each:
                    raise _short(file)
                left -= size
                if left == 0 and part.stop == dims[0] and stream.read(1):
                    raise DataFault(f"{file}: goes on after the last record of its header", "copy it again")
                yield np.frombuffer(content, dtype=np.uint8).reshape(size, *shape)
                if left == 0:
                    return
    except READ_ERRORS as error:
        raise unreadable_fault(file, error) from error


def _dimensions(file: Path, stream: BinaryIO) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[3] == 0:
        raise DataFault(f"{file}: is not an IDX file; {FORMAT}", "name another file, or declare another `source`")
    if magic[2] != UNSIGNED_BYTE:
        raise DataFault(f"{file}: its values are not unsigned bytes; {FORMAT}", "store the values as unsigned bytes")
    header = stream.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise DataFault(f"{file}: ends within its header; {FORMAT}", "copy the file again")
    return tuple(int.from_bytes(header[i : i + 4], "big") for i in range(0, len(header), 4))


def _short(file: Path) -> DataFault:
    return DataFault(
        f"{file}: ends before the last record of its header",
        "the file is truncated: copy it again",
    )
