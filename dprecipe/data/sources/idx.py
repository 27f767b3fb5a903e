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

from dprecipe.data.files import GZIP_LIMIT, READ_ERRORS, is_gzip, locate, opened, read_exactly, unreadable
from dprecipe.data.raw import Raw, channels_first, class_labels, span, unlabelled
from dprecipe.data.schema import Idx, PublicIdx
from dprecipe.faults import DataFault

UNSIGNED_BYTE = 0x08
FORMAT = "expected an IDX file of unsigned bytes, plain or gzipped"


def read(source: Idx | PublicIdx, root: Path) -> Raw:
    """The selected records: images as uint8 (N, C, H, W) or (N, D), labels in [0, classes).

    Raises:
        DataFault: a file is missing, damaged, no IDX, or not of the declared shape, length or classes.
    """
    images = read_array(locate(source.images, root), source.shape)
    if isinstance(source, PublicIdx):
        chosen = channels_first(images[span(source.records, len(images), source.images)])
        return Raw(chosen, unlabelled(len(chosen)))
    labels = read_array(locate(source.labels, root), ())
    if len(images) != len(labels):
        raise DataFault(
            f"{source.images} holds {len(images)} images and {source.labels} {len(labels)} labels",
            "name the two files of one set",
        )
    part = span(source.records, len(labels), source.images)
    return Raw(channels_first(images[part]), class_labels(labels[part], source.classes, source.labels, part.start))


def read_array(file: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """All values of an IDX file whose records have this shape, (N, *shape).

    Memory is bounded by what the header announces, and the header by what the file can hold.

    Raises:
        DataFault: the file is not that.
    """
    try:
        with opened(file) as stream:
            dims = _dimensions(file, stream)
            if dims[1:] != shape:
                raise DataFault(
                    f"{file}: one record has shape {list(dims[1:])}, the recipe declares {list(shape)}",
                    "declare the shape that the file has, or name the right file (images and labels swapped?)",
                )
            size = math.prod(dims)
            if size > file.stat().st_size * (GZIP_LIMIT if is_gzip(file) else 1):
                raise _short(file, dims)
            content = read_exactly(stream, size)
            if len(content) < size:
                raise _short(file, dims)
            if stream.read(1):
                raise DataFault(f"{file}: goes on after the {dims[0]} records of its header", "copy it again")
    except READ_ERRORS as error:
        raise unreadable(file, error) from error
    return np.frombuffer(content, dtype=np.uint8).reshape(dims)


def _dimensions(file: Path, stream: BinaryIO) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[3] == 0:
        raise DataFault(f"{file}: is no IDX file; {FORMAT}", "name another file or another `source`")
    if magic[2] != UNSIGNED_BYTE:
        raise DataFault(f"{file}: its values are no unsigned bytes; {FORMAT}", "store the values as unsigned bytes")
    header = stream.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise DataFault(f"{file}: ends within its header; {FORMAT}", "copy the file again")
    return tuple(int.from_bytes(header[i : i + 4], "big") for i in range(0, len(header), 4))


def _short(file: Path, dims: tuple[int, ...]) -> DataFault:
    return DataFault(
        f"{file}: ends before the {dims[0]} records of {list(dims[1:])} that its header announces",
        "the file is cut off: copy it again",
    )
