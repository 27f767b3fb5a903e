"""`idx`: the format of MNIST (LeCun, Cortes, Burges), plain or gzipped.

A file is two zero bytes, a type code (0x08: unsigned byte), the number of dimensions, each dimension as a
big-endian 32-bit integer, and the values.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

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
from dprecipe.data.raw import Raw, Reading, channels_first, class_labels, drop_labels
from dprecipe.faults import DataFault

UNSIGNED_BYTE = 0x08
FORMAT = "expected an IDX file of unsigned bytes, plain or gzipped"


def read_idx(
    images: str,
    labels: str | None,
    shape: tuple[int, ...],
    classes: int,
    records: tuple[int, ...] | None,
    root: Path,
    reading: Reading,
) -> Raw:
    """The selected records: images as uint8 (N, C, H, W) or (N, D), labels in [0, classes), or zeros.

    Raises:
        DataFault: a file is missing, damaged, not IDX, or not of the declared shape, length or classes.
    """
    file = locate_file(images, root)
    label_file = None if labels is None else locate_file(labels, root)
    count = _count(file, shape)
    if label_file is not None and _count(label_file, ()) != count:
        raise DataFault(
            f"{images} and {labels} have different numbers of images and labels", "name the two files of one data set"
        )
    part = reading.span(records, count, images)
    chosen = channels_first(read_array(file, shape, part))
    reading.counts.records = len(chosen)
    if labels is None or label_file is None:
        return Raw(chosen, drop_labels(len(chosen)))
    numbers = read_array(label_file, (), part)
    return Raw(chosen, class_labels(numbers, classes, labels, reading.problems, part.start))


def _count(file: Path, shape: tuple[int, ...]) -> int:
    """The number of records in the header of a file with this record shape."""
    try:
        with open_file(file) as stream:
            return _header(file, stream, shape)[0]
    except READ_ERRORS as error:
        raise unreadable_fault(file, error) from error


def _header(file: Path, stream: BinaryIO, shape: tuple[int, ...]) -> tuple[int, ...]:
    dims = _dimensions(file, stream)
    if dims[1:] != shape:
        raise DataFault(
            f"{file}: one record has shape {list(dims[1:])}, the recipe declares {list(shape)}",
            "declare the shape that the file has, or name the right file (images and labels swapped?)",
        )
    if math.prod(dims) > file.stat().st_size * (GZIP_LIMIT if is_gzip(file) else 1):
        raise _short(file)
    return dims


def read_array(file: Path, shape: tuple[int, ...], part: slice) -> NDArray[np.uint8]:
    """Records of an IDX file, each of this shape: (part.stop - part.start, *shape).

    Memory is that of the requested records; data after them are checked only if they are the last records.

    Raises:
        DataFault: the file is damaged, or has another format or shape.
    """
    try:
        with open_file(file) as stream:
            dims, each = _header(file, stream, shape), math.prod(shape)
            skip_exactly(stream, part.start * each)
            size = (part.stop - part.start) * each
            content = read_exactly(stream, size)
            if len(content) < size:
                raise _short(file)
            if part.stop == dims[0] and stream.read(1):
                raise DataFault(f"{file}: goes on after the last record of its header", "copy it again")
    except READ_ERRORS as error:
        raise unreadable_fault(file, error) from error
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, *shape)


def _dimensions(file: Path, stream: BinaryIO) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[3] == 0:
        raise DataFault(f"{file}: is not an IDX file; {FORMAT}", "name another file or another `source`")
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
