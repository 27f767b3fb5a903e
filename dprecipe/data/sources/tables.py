"""Sources that are tables, or images in a table's column: `csv`, `json_lines`, `parquet` and `datasets`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dprecipe.data.sources.base import (
    PATHS,
    RECORDS,
    Access,
    ColumnLabelled,
    Columns,
    FileSource,
    Paths,
    Records,
    SeveralFiles,
    SourceBlock,
    TableSource,
    UnreadLabel,
)
from dprecipe.data.sources.labels import AnyLabel
from dprecipe.faults import Finding
from dprecipe.language.base import Block, Name, PositiveInt, Text

Delimiter = Annotated[str, Field(min_length=1, max_length=1)]
SplitName = Annotated[str, Field(pattern=r"^\w+([.-]\w+)*$", max_length=100)]
SPLIT = "the split to read, such as `train`; may be left out where there is one"


def wrong_delimiter(delimiter: str, path: str) -> Iterator[Finding]:
    """Yields the finding for a delimiter that can't separate fields; `path` is the source's."""
    if delimiter in '"\r\n\\' or not delimiter.isascii():
        yield Finding(
            "R217",
            "a delimiter is one ASCII character other than a quote, a backslash or a line break",
            "write the character between the fields of a line, such as ',' or ';' or \"\\t\"",
            f"{path}.delimiter",
        )


class AnyCsv(TableSource, SeveralFiles):
    """A table with a header line, in both blocks."""

    source: Literal["csv"]
    path: Paths = Field(description=PATHS)
    columns: Columns
    label: AnyLabel | None
    delimiter: Delimiter = ","
    records: Records | None = Field(None, description=RECORDS)
    access: Access

    shared: ClassVar[tuple[str, ...]] = ("columns", "delimiter")

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from super().contradictions(path)
        yield from wrong_delimiter(self.delimiter, path)


class Csv(ColumnLabelled, AnyCsv):
    """A table with a header line, plain or gzipped."""

    shared: ClassVar[tuple[str, ...]] = ("columns", "label", "delimiter")


class PublicCsv(UnreadLabel, AnyCsv):
    """A table with a header line. Columns that are not declared, and any label, are never read."""


class AnyJsonLines(TableSource, SeveralFiles):
    """A table of one JSON object a line, in both blocks."""

    source: Literal["json_lines"]
    path: Paths = Field(description=PATHS)
    columns: Columns
    label: AnyLabel | None
    records: Records | None = Field(None, description=RECORDS)
    access: Access

    shared: ClassVar[tuple[str, ...]] = ("columns",)


class JsonLines(ColumnLabelled, AnyJsonLines):
    """A table of one JSON object a line, plain or gzipped; keys are columns."""

    shared: ClassVar[tuple[str, ...]] = ("columns", "label")


class PublicJsonLines(UnreadLabel, AnyJsonLines):
    """A table of one JSON object a line. Columns that are not declared, and any label, are never read."""


class ImageColumn(Block):
    """An image column in the layout of Hugging Face: a struct of `bytes` and `path`; pixels become [0, 1]."""

    column: Name
    shape: Annotated[tuple[PositiveInt, ...], Field(min_length=3, max_length=3)] = Field(
        description="height, width, channels"
    )


class TableOrImages(SourceBlock):
    """A source that is a table (`columns`) or images (`image`)."""

    if TYPE_CHECKING:
        columns: Columns | None
        image: ImageColumn | None

    @property
    def record_shape(self) -> tuple[int, ...]:
        return () if self.image is None else self.image.shape

    @property
    def shape_key(self) -> str:
        return "image.shape"

    @property
    def table_columns(self) -> Columns | None:
        return self.columns

    def contradictions(self, path: str) -> Iterator[Finding]:
        if (self.columns is None) == (self.image is None):
            yield Finding(
                "R204",
                f"a {self.source} source is a table (`columns`) or images (`image`): exactly one of the two",
                "remove one of them" if self.image is not None else "add `columns` or `image`",
                path,
            )


class AnyParquet(TableOrImages, SeveralFiles):
    """A Parquet file, in both blocks."""

    source: Literal["parquet"]
    path: Paths = Field(description=PATHS)
    columns: Columns | None = None
    image: ImageColumn | None = None
    label: AnyLabel | None
    records: Records | None = Field(None, description=RECORDS)
    access: Access

    shared: ClassVar[tuple[str, ...]] = ("columns", "image")

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from SeveralFiles.contradictions(self, path)
        yield from TableOrImages.contradictions(self, path)


class Parquet(ColumnLabelled, AnyParquet):
    """A Parquet file: a table (`columns`) or images (`image`); exactly one of the two."""

    shared: ClassVar[tuple[str, ...]] = ("columns", "image", "label")


class PublicParquet(UnreadLabel, AnyParquet):
    """A Parquet file: a table (`columns`) or images (`image`); exactly one of the two. No labels."""


class AnyDatasetFolder(TableOrImages, FileSource):
    """A folder of Hugging Face's `datasets`, in both blocks."""

    source: Literal["datasets"]
    path: Text
    split: SplitName | None = Field(None, description=SPLIT)
    columns: Columns | None = None
    image: ImageColumn | None = None
    label: AnyLabel | None
    records: Records | None = Field(None, description=RECORDS)
    access: Access

    shared: ClassVar[tuple[str, ...]] = ("columns", "image")

    @property
    def origins(self) -> tuple[tuple[str, str], ...]:
        return ((posixpath.normpath(self.path), self.split or ""),)

    @property
    def folder_suffixes(self) -> tuple[str, ...]:
        return (".arrow", ".parquet")

    def features_files(self, root: Path) -> list[Path]:
        files: list[Path] = self.import_reader().existing_files(self, root)
        return files

    def all_files(self, root: Path) -> list[Path]:
        return self.features_files(root)


class DatasetFolder(ColumnLabelled, AnyDatasetFolder):
    """A folder of Hugging Face's `datasets` (`save_to_disk`, or a snapshot of the hub): a table or images."""

    shared: ClassVar[tuple[str, ...]] = ("columns", "image", "label")


class PublicDatasetFolder(UnreadLabel, AnyDatasetFolder):
    """A folder of Hugging Face's `datasets`: a table or images. No labels."""
