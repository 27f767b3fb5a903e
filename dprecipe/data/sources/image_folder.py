"""`image_folder`: images in a folder, one file each, in class folders or listed in a table."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dprecipe.data.sources.base import RECORDS, UNREAD, Access, ColumnLabelled, PublicRecords, Records, SourceBlock
from dprecipe.data.sources.labels import Label
from dprecipe.data.sources.tables import Delimiter, wrong_delimiter
from dprecipe.faults import Finding
from dprecipe.language.base import Name, PositiveInt, Text

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
FOLDER_COLUMNS = ("file", "folder")
"""Columns of images without a table: the path below the source's, and its first folder."""
Shape = Annotated[tuple[PositiveInt, ...], Field(min_length=3, max_length=3)]
SHAPE = "height, width, channels of every image"
RESIZE = "`stretch` or `crop` (its middle, of the declared proportions): how an image of another size is made to fit"
TABLE = "a CSV file with a row for each image that is used; without it, all images of the folder are"
IMAGE_COLUMN = "the table's column of paths, below the folder"


class AnyImageFolder(SourceBlock):
    """Images in a folder, in both blocks."""

    source: Literal["image_folder"]
    path: Text
    table: Text | None = Field(None, description=TABLE)
    image_column: Name = Field("file", description=IMAGE_COLUMN)
    delimiter: Delimiter = ","
    shape: Shape = Field(description=SHAPE)
    resize: Literal["stretch", "crop"] | None = Field(None, description=RESIZE)
    label: Label | None
    records: Records | None = Field(None, description=RECORDS)
    access: Access

    shared: ClassVar[tuple[str, ...]] = ("image_column", "delimiter", "shape", "resize")

    @property
    def image_resize(self) -> Literal["stretch", "crop"] | None:
        return self.resize

    @property
    def record_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def has_names(self) -> bool:
        return True

    @property
    def files(self) -> Mapping[str, str]:
        return {"path": self.path} if self.table is None else {"path": self.path, "table": self.table}

    @property
    def features_paths(self) -> tuple[str, ...]:
        return (self.path,)

    @property
    def folder_suffixes(self) -> tuple[str, ...]:
        return SUFFIXES

    @property
    def origins(self) -> tuple[tuple[str, str], ...]:
        table = "" if self.table is None else posixpath.normpath(self.table)
        return ((posixpath.normpath(self.path), table),)

    def format_of(self, key: str, path: str) -> str:
        return "csv" if key == "table" else self.source

    def features_files(self, root: Path) -> list[Path]:
        files: list[Path] = self.import_reader().existing_files(self, root)
        return files

    def all_files(self, root: Path) -> list[Path]:
        table = [] if self.table is None else [root / self.table]
        return [*self.features_files(root), *(file for file in table if file.is_file())]

    def contradictions(self, path: str) -> Iterator[Finding]:
        if self.table is not None:
            yield from wrong_delimiter(self.delimiter, path)
        elif self.read_label is not None and self.read_label.read_columns not in ((), ("folder",)):
            yield Finding(
                "R241",
                f"an image folder without a table has no column {self.read_label.read_columns[0]!r}",
                "write label.column: folder, where each class has a folder of its own; or name a CSV file in `table`",
                f"{path}.label.{'column' if self.read_label.columns is None else 'columns'}",
            )


class ImageFolder(ColumnLabelled, AnyImageFolder):
    """Images in a folder, one file each: in class folders (`label.column: folder`), or listed in a table."""

    label: Label

    shared: ClassVar[tuple[str, ...]] = ("image_column", "delimiter", "shape", "resize", "label")


class PublicImageFolder(PublicRecords, AnyImageFolder):
    """Images in a folder, one file each: all of them, or those that a table lists. No labels."""

    label: Label | None = Field(None, description=UNREAD)
