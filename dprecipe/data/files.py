"""Locate and open data files: plain or gzipped, distinguished by their first bytes.

Several files make one source: a list of paths, or a pattern. The names of files that a pattern matches are not in the
recipe, so they may be private (a file per patient): messages name the pattern, and only a terminal shows the file.
"""

from __future__ import annotations

import glob
import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO, cast, final

from dprecipe.faults import DataFault

GZIP_MAGIC = b"\x1f\x8b"
GZIP_LIMIT = 1_100
"""Deflate expands a byte to at most 1,032: if a header states more, the file is truncated."""
CHUNK = 1 << 20
READ_ERRORS = (OSError, EOFError, zlib.error)
"""Exceptions that reading a damaged file can raise."""
MAX_FILES = 100_000
"""Files of a table."""


@final
@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that is read. A log may have `name`, which is text of the recipe; only a terminal gets `place`, its own
    name."""

    path: Path
    name: str
    place: str

    @staticmethod
    def of(path: Path) -> DataFile:
        """Returns a file that the recipe names."""
        return DataFile(path, path.name, path.name)

    def fault(self, problem: str, remedy: str) -> DataFault:
        """Returns the fault for a problem of this file."""
        return DataFault(f"{self.name}: {problem}", remedy, self.place if self.place != self.name else "")

    def at(self, place: str) -> str:
        """Returns a place in the file, as a terminal shows it beside `name`."""
        return place if self.place == self.name else f"{self.place}, {place}"

    def where(self, place: str) -> str:
        """Returns a place in the file, after its name and a comma: a log gets what stands before the comma."""
        return f"{self.name}, {self.at(place)}"

    def unreadable(self, error: Exception) -> DataFault:
        """Returns the fault where it exists and can't be read."""
        if self.place == self.name:
            return unreadable_fault(self.path, error)
        return self.fault(*_unreadable(error))

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Opens the file as `open_file` does."""
        try:
            stream = _open_stream(self.path)
        except OSError as error:
            raise self.unreadable(error) from error
        with stream:
            yield stream


def data_root(cli_value: str | Path | None, recipe_file: str | Path | None) -> Path:
    """Returns the folder of relative data paths: `cli_value`, else `$DPRECIPE_DATA`, else the recipe's folder."""
    if cli_value is not None:
        return Path(cli_value)
    from_environment = os.environ.get("DPRECIPE_DATA", "")
    if from_environment != "":
        return Path(from_environment)
    return Path() if recipe_file is None else Path(recipe_file).resolve().parent


def locate_file(path: str, root: Path) -> Path:
    """Returns the file that a recipe's path names. An absolute path is taken as it is.

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


def locate_folder(path: str, root: Path) -> Path:
    """Returns the folder that a recipe's path names.

    Raises:
        DataFault: there is no such folder.
    """
    full = root / path
    try:
        result = full.is_dir()
    except (OSError, ValueError):
        result = False
    if not result:
        raise DataFault(
            f"{path}: no such folder (tried {full})",
            "check the spelling of the path; it is relative to --data-root, else to $DPRECIPE_DATA, else to the "
            "recipe's folder: set one of them, or write an absolute path",
        )
    return full


def is_pattern(path: str) -> bool:
    """Returns True if a recipe's path may match several files: `*`, `?`, and `**` for any folders.

    Brackets are ordinary characters.
    """
    return "*" in path or "?" in path


def locate_files(paths: Sequence[str], root: Path) -> list[DataFile]:
    """Returns the files that paths and patterns name: in the order of the list, those of a pattern sorted by their
    parts.

    A pattern matches files below the data root alone, also where a link leads out of it, and none whose name begins
    with a dot.

    Raises:
        DataFault: a path names no file, a pattern none or one outside of the data root, or a file is named twice.
    """
    files = [file for path in paths for file in _matches(path, root)]
    if len(paths) == 1 and not is_pattern(paths[0]):
        return files
    if len(files) > MAX_FILES:
        raise DataFault(f"{paths[0]}: there are more than {MAX_FILES:,} files", "write fewer, larger files")
    seen: set[tuple[int, int]] = set()
    for file in files:
        status = file.path.stat()
        if (status.st_dev, status.st_ino) in seen:
            raise file.fault("a file is named twice: its records would count twice", "name each file once")
        seen.add((status.st_dev, status.st_ino))
    return files


def name_files(files: Sequence[DataFile]) -> str:
    """Returns several files, for a message: paths and patterns as the recipe has them."""
    first, *others = dict.fromkeys(file.name for file in files)
    return f"{first} and {len(others)} others" if len(others) > 1 else " and ".join((first, *others))


def check_present(path: str, root: Path, is_folder: bool = False) -> None:
    """Checks that a path or a pattern names something. `is_folder`: what is missing otherwise is a folder.

    Raises:
        DataFault: it names nothing.
    """
    if is_pattern(path):
        _matches(path, root)
    elif not os.path.exists(root / path):  # also where the name is too long
        (locate_folder if is_folder else locate_file)(path, root)


def find_existing(paths: Sequence[str], root: Path) -> list[Path]:
    """Locates files as `locate_files` does, without those that are missing."""
    files: list[Path] = []
    for path in paths:
        found = _glob(path, root) if is_pattern(path) else [path]
        files += [root / name for name in found if (root / name).exists()]
    return files


def _matches(path: str, root: Path) -> list[DataFile]:
    if not is_pattern(path):
        return [DataFile.of(locate_file(path, root))]
    inside, names = root.resolve(), _glob(path, root)
    files = [DataFile(root / name, path, name) for name in names if (root / name).is_file()]
    if not files:
        raise DataFault(
            f"{path}: the pattern matches no file below {root}",
            "check its spelling (`*` is any name, `**` any folders); it is relative to --data-root, else to "
            "$DPRECIPE_DATA, else to the recipe's folder",
        )
    for file in files:
        if not file.path.resolve().is_relative_to(inside):
            raise file.fault(
                "the pattern matches a link to a file outside of the data root",
                "copy the file into the data root, set --data-root to a folder that holds it, or list it by its path",
            )
    return files


def _glob(pattern: str, root: Path) -> list[str]:
    """Returns the matches in order. A pattern that is absolute or goes up matches nothing: the rules of a recipe refuse
    it.
    """
    if leaves_root(pattern):
        return []
    try:
        found = glob.glob(pattern.replace("[", "[[]"), root_dir=root, recursive=True)
    except (OSError, ValueError):  # a NUL
        return []
    return sorted(set(found), key=lambda name: PurePath(name).parts)


def leaves_root(path: str) -> bool:
    """Returns True if a path is absolute or goes up."""
    return PurePath(path).is_absolute() or ".." in path.replace("\\", "/").split("/")


def is_gzip(file: Path) -> bool:
    """Returns True if the content is gzipped; the name does not matter."""
    with file.open("rb") as stream:
        return stream.read(2) == GZIP_MAGIC


@contextmanager
def open_file(file: Path) -> Iterator[BinaryIO]:
    """Yields the file's content as a stream of bytes, decompressed if it is gzipped.

    Raises:
        DataFault: it can't be opened. Reading can still raise `READ_ERRORS`.
    """
    try:
        stream = _open_stream(file)
    except OSError as error:
        raise unreadable_fault(file, error) from error
    with stream:
        yield stream


def _open_stream(file: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(file, "rb")) if is_gzip(file) else file.open("rb")


def read_exactly(stream: BinaryIO, count: int) -> bytes:
    """Returns at most `count` bytes, fewer if the stream ends. Memory grows with the bytes that are read."""
    parts = bytearray()
    while len(parts) < count:
        part = stream.read(min(CHUNK, count - len(parts)))
        if not part:
            break
        parts += part
    return bytes(parts)


def skip_exactly(stream: BinaryIO, count: int) -> None:
    """Skips `count` bytes, or all that remain."""
    while count > 0:
        part = stream.read(min(CHUNK, count))
        if not part:
            break
        count -= len(part)


def unreadable_fault(file: Path, error: Exception) -> DataFault:
    """Returns the fault for a file that exists but can't be read."""
    problem, remedy = _unreadable(error)
    return DataFault(f"{file}: {problem}", remedy)


def _unreadable(error: Exception) -> tuple[str, str]:
    reason = error.strerror if isinstance(error, OSError) and error.strerror is not None else None
    return f"can't be read ({reason or 'damaged or cut off'})", "check its permissions, or copy the file again"
