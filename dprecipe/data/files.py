"""Locate and open data files: plain or gzipped, distinguished by their first bytes."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from dprecipe.faults import DataFault

GZIP_MAGIC = b"\x1f\x8b"
GZIP_LIMIT = 1_100
"""Deflate expands a byte to at most 1,032: if a header states more, the file is truncated."""
CHUNK = 1 << 20
READ_ERRORS = (OSError, EOFError, zlib.error)
"""What reading a damaged file can raise."""


def data_root(cli_value: str | Path | None, recipe_file: str | Path | None) -> Path:
    """The folder of relative data paths: `cli_value`, else `$DPRECIPE_DATA`, else the recipe's folder."""
    if cli_value is not None:
        return Path(cli_value)
    from_environment = os.environ.get("DPRECIPE_DATA", "")
    if from_environment != "":
        return Path(from_environment)
    return Path() if recipe_file is None else Path(recipe_file).resolve().parent


def locate_file(path: str, root: Path) -> Path:
    """The file that a recipe's path names. An absolute path is taken as it is.

    Raises:
        DataFault: there is no such file. The message names the path tried and the three ways to set the folder.
    """
    full = root / path
    try:
        result = full.is_file()
    except (OSError, ValueError):  # a name too long, or with a NUL
        result = False
    if not result:
        raise DataFault(
            f"{path}: no such data file (tried {full})",
            "check the spelling of the path; it is relative to --data-root, else to $DPRECIPE_DATA, else to the "
            "recipe's folder: set one of them, or write an absolute path",
        )
    return full


def is_gzip(file: Path) -> bool:
    """Whether the content is gzipped; the name does not matter."""
    try:
        with file.open("rb") as stream:
            return stream.read(2) == GZIP_MAGIC
    except OSError as error:
        raise unreadable_fault(file, error) from error


@contextmanager
def open_file(file: Path) -> Iterator[BinaryIO]:
    """The file's content as a stream of bytes, decompressed if it is gzipped.

    Raises:
        DataFault: it can't be opened. Reading can still raise `READ_ERRORS`.
    """
    try:
        stream = cast(BinaryIO, gzip.open(file, "rb")) if is_gzip(file) else file.open("rb")  # noqa: SIM115
    except OSError as error:
        raise unreadable_fault(file, error) from error
    with stream:
        yield stream


def read_exactly(stream: BinaryIO, count: int) -> bytes:
    """At most `count` bytes, fewer if the stream ends. Memory grows with the bytes that are read."""
    parts = bytearray()
    while len(parts) < count:
        part = stream.read(min(CHUNK, count - len(parts)))
        if not part:
            break
        parts += part
    return bytes(parts)


def skip_exactly(stream: BinaryIO, count: int) -> None:
    """Skip `count` bytes, or all that remain."""
    while count > 0:
        part = stream.read(min(CHUNK, count))
        if not part:
            break
        count -= len(part)


def unreadable_fault(file: Path, error: Exception) -> DataFault:
    """The fault for a file that exists but can't be read."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror is not None else None
    return DataFault(
        f"{file}: can't be read ({reason or 'damaged or cut off'})",
        "check its permissions, or copy the file again",
    )
