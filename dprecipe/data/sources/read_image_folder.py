"""`image_folder`: image files, in the order of their names, decoded a chunk at a time.

File names of private images are private: a log gets the source's path, and only a terminal the name of the file.
"""

from __future__ import annotations

import math
import os
import posixpath
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import final

from dprecipe.data.files import DataFile, leaves_root, locate_file, locate_folder
from dprecipe.data.images import ImageCollector, ImageForm, collecting_images
from dprecipe.data.problems import Place, Problems
from dprecipe.data.raw import MAX_RECORDS, Raw, Reading
from dprecipe.data.sources.image_folder import FOLDER_COLUMNS, SUFFIXES, AnyImageFolder
from dprecipe.data.sources.labels import Label
from dprecipe.data.sources.read_csv import read_rows
from dprecipe.data.sources.row_selection import RowLimit
from dprecipe.data.values import Values, as_list
from dprecipe.data.words import Header
from dprecipe.faults import DataFault
from dprecipe.text.spelling import normalise_text

IGNORED = frozenset(("thumbs.db", "desktop.ini"))
"""Files of the system's, beside those whose names begin with a dot."""
CHUNK_IMAGES = 256
CHUNK_BYTES = 64 << 20


def read(source: AnyImageFolder, root: Path, reading: Reading) -> Raw:
    """Returns the selected images (N, C, H, W) uint8, in the order of their paths: those of the folder, or those that
    the table lists.

    Raises:
        DataFault: a folder, file or column is missing; an image is none of the declared form, or in no declared class.
    """
    path, label = source.path, source.read_label
    folder = locate_folder(path, root)
    with collecting_images(ImageForm(source.shape, source.resize), label, reading) as collector:
        if source.table is None:
            rows = _folder_rows(folder, path, root, collector.names)
            if label is not None:
                _check_classes(rows.columns["folder"], label, path, reading.problems)
        else:
            rows = _table_rows(source, source.table, folder, root, collector.names, reading.problems)
        part = reading.span(source.records, len(rows.files), path)
        if not rows.files:
            raise DataFault(f"{path}: holds no image", "name a folder with PNG, JPEG or WebP files")
        _decode(folder, path, rows, range(len(rows.files))[part], collector)
        return collector.raw()


def existing_files(source: AnyImageFolder, root: Path) -> list[Path]:
    """Returns the image files that exist, in order; none where the source can't be read."""
    try:
        folder = locate_folder(source.path, root)
        if source.table is None:
            names: Sequence[str] = list_images(folder, source.path, root)
        else:
            names = _table_rows(source, source.table, folder, root, (), Problems(private=True)).files
    except DataFault:
        return []
    return [file for file in (folder / name for name in names) if file.exists()]


@final
@dataclass(frozen=True, slots=True)
class _ImageRows:
    """Images by their paths below the folder, in order, with the columns that are read."""

    files: Sequence[str]
    columns: Mapping[str, Sequence[str]]
    place: Place
    """Place of a row, for faults of its columns."""


def _folder_rows(folder: Path, path: str, root: Path, names: tuple[str, ...]) -> _ImageRows:
    for name in names:
        if name not in FOLDER_COLUMNS:
            raise DataFault(
                f"{path}: an image folder without a table has the columns `file` and `folder`, and no {name!r}",
                "name one of them, or a CSV file with that column in `table`",
            )
    files = list_images(folder, path, root)
    columns = {"file": files, "folder": [name.partition("/")[0] if "/" in name else "" for name in files]}
    return _ImageRows(files, {name: columns[name] for name in names}, lambda row: f"{path}, {files[row]}")


def list_table_images(
    source: AnyImageFolder, table: str, root: Path, names: tuple[str, ...], problems: Problems
) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Returns the images that a table lists, by their paths below the folder, and its columns `names`, in its order.

    Raises:
        DataFault: see `read`.
    """
    rows = _table_rows(source, table, locate_folder(source.path, root), root, names, problems, as_listed=True)
    return rows.files, rows.columns


def list_images(folder: Path, path: str, root: Path, others: list[str] | None = None) -> list[str]:
    """Returns the images below a folder, by their paths below it, sorted part by part. `others`: gets the files that
    are no images by their names, which are refused without it.

    Raises:
        DataFault: a file is no image by its name, a link leads out, a name is not UTF-8, or there are too many.
    """
    inside = (folder.resolve(), root.resolve())
    names: list[str] = []
    for entry, name in _walk(folder, "", path):
        if entry.name.startswith(".") or entry.name.casefold() in IGNORED:
            continue
        if not name.isprintable():
            raise DataFault(f"{path}: a file's name is not UTF-8, or has control characters", "rename it", ascii(name))
        if PurePosixPath(name).suffix.casefold() not in SUFFIXES or not entry.is_file():
            if others is not None:
                others.append(name)
                continue
            raise DataFault(
                f"{path}: a file is no PNG, JPEG or WebP image, by its name",
                "move it out of the folder, convert it, or list the images in `table`",
                name,
            )
        if entry.is_symlink():
            _check_inside(Path(entry.path), inside, path, name)
        names.append(name)
        if len(names) > MAX_RECORDS:
            raise DataFault(f"{path}: holds more than {MAX_RECORDS:,} images", "use fewer, or list them in `table`")
    return sorted(names, key=lambda name: name.split("/"))


def _walk(folder: Path, above: str, path: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Yields the files below a folder, with their paths below it, in any order."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{above}{entry.name}"
            if not entry.is_dir() or entry.name.startswith("."):
                yield entry, name
            elif entry.is_symlink():
                raise DataFault(
                    f"{path}: a folder in it is a link", "copy the folder, or list the images in `table`", name
                )
            else:
                yield from _walk(Path(entry.path), f"{name}/", path)


def _check_inside(file: Path, inside: tuple[Path, ...], path: str, name: str) -> None:
    if not any(file.resolve().is_relative_to(folder) for folder in inside):
        raise DataFault(
            f"{path}: an image is a link to a file outside of the folder and of the data root",
            "copy the file into the folder, or set --data-root to a folder that holds both",
            name,
        )


@final
class _TableColumns:
    """Some columns of a table as texts, and the place of each row."""

    numeric: frozenset[str] = frozenset()

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.texts: dict[str, list[str]] = {name: [] for name in names}
        self._starts: list[int] = []
        self._places: list[Place] = []
        self._rows = 0

    def add(self, columns: Mapping[str, Values], rows: int, place: Place) -> None:
        """Keeps a chunk of rows."""
        for name in self.names:
            self.texts[name] += [str(value or "").strip() for value in as_list(columns[name])]
        self._starts.append(self._rows)
        self._places.append(place)
        self._rows += rows

    def place(self, row: int) -> str:
        """Returns the place of a row."""
        chunk = bisect_right(self._starts, row) - 1
        return self._places[chunk](row - self._starts[chunk])


def _table_rows(
    source: AnyImageFolder,
    table: str,
    folder: Path,
    root: Path,
    names: tuple[str, ...],
    problems: Problems,
    as_listed: bool = False,
) -> _ImageRows:
    """Returns the rows of a table in the order of their images, or `as_listed`.

    Raises:
        DataFault: it is no such table, or a row names an image outside of the folder, or one that another names.
    """
    columns = _TableColumns(tuple(dict.fromkeys((source.image_column, *names))))
    limit = RowLimit(MAX_RECORDS, lambda: DataFault(f"{table}: has more than {MAX_RECORDS:,} rows", "use fewer"))
    read_rows(DataFile.of(locate_file(table, root)), columns, source.delimiter, limit, problems)
    files, subject = columns.texts[source.image_column], f"{table}, column {source.image_column!r}"
    inside, resolve = (folder.resolve(), root.resolve()), cache(Path.resolve)
    seen: set[str] = set()
    for row, name in enumerate(files):
        problem = ""
        if not name or leaves_root(name) or not name.isprintable():
            problem, remedy = "a field is no path below the folder", "write the path of an image below the folder"
        elif (plain := _find_encoded(folder, posixpath.normpath(name))) in seen:
            problem, remedy = "an image is listed twice: its record would count twice", "list each image once"
        elif not any(resolve((folder / name).parent).is_relative_to(place) for place in inside):
            problem, remedy = "a path leads through a link out of the folder", "copy the images into the folder"
        else:
            files[row] = plain
            seen.add(plain)
            if (folder / plain).is_symlink():
                _check_inside(folder / plain, inside, source.path, plain)
        if problem:
            problems.add(subject, problem, remedy, columns.place(row).partition(", ")[2])
    problems.check()
    order = list(range(len(files))) if as_listed else sorted(range(len(files)), key=lambda row: files[row].split("/"))
    chosen = {name: [columns.texts[name][row] for row in order] for name in names}
    return _ImageRows([files[row] for row in order], chosen, lambda row: columns.place(order[row]))


def _find_encoded(folder: Path, name: str) -> str:
    """Returns the path below a folder as the disk encodes it: another system may have written its accents in the other
    way.
    """
    forms = () if name.isascii() else (name, unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name))
    return next((form for form in forms if (folder / form).exists()), name)


def _check_classes(folders: Sequence[str], label: Label, path: str, problems: Problems) -> None:
    """Checks that class folders are among the declared classes.

    Raises:
        DataFault: one is not. Its name is for a terminal, a declared name that is nearly equal for all.
    """
    declared = label.values or ()
    known, others = Header(declared), sorted({*map(normalise_text, folders)} - {*declared, ""})
    if not declared or not others:
        return
    for name in others:
        meant = known.nearest(name)
        nearest = f", and nearly {meant!r}" if meant is not None else ""
        problems.add(
            path,
            f"a folder is none of the {len(declared)} declared classes{nearest}",
            "rename the folder, or declare its name in label.values; a folder that is no class belongs elsewhere",
            name,
        )
    problems.check()


def _decode(folder: Path, path: str, rows: _ImageRows, part: range, collector: ImageCollector) -> None:
    """Decodes the images of a part of the rows."""
    each = math.prod(collector.form.shape)
    step = max(1, min(CHUNK_IMAGES, CHUNK_BYTES // each))
    for start in range(part.start, part.stop, step):
        chunk = range(start, min(start + step, part.stop))
        images = [folder / rows.files[row] for row in chunk]
        columns = {name: rows.columns[name][chunk.start : chunk.stop] for name in collector.names}
        collector.add(images, columns, partial(_of_chunk, rows.place, start), partial(_file_at, rows, start), path)


def _of_chunk(place: Place, start: int, row: int) -> str:
    return place(start + row)


def _file_at(rows: _ImageRows, start: int, row: int) -> str:
    return rows.files[start + row]
