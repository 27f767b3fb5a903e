"""`parquet`: a table, or images in the layout of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dprecipe.data.sources.base import (
    ACCESS,
    PATHS,
    RECORDS,
    UNREAD,
    Access,
    AnyLabel,
    ColumnLabelled,
    Columns,
    Paths,
    Records,
    SeveralFiles,
    SourceBlock,
)
from dprecipe.data.sources.label_checks import label_contradictions
from dprecipe.faults import Finding
from dprecipe.language.base import Block, Name, PositiveInt
from dprecipe.libraries import importing_libraries

if TYPE_CHECKING:
    from dprecipe.data.raw import Raw, Reading


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


class _Parquet(TableOrImages, SeveralFiles):
    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from SeveralFiles.contradictions(self, path)
        yield from TableOrImages.contradictions(self, path)


class Parquet(_Parquet, ColumnLabelled):
    """A Parquet file: a table (`columns`) or images (`image`); exactly one of the two."""

    source: Literal["parquet"]
    path: Paths = Field(description=PATHS)
    columns: Columns | None = None
    image: ImageColumn | None = None
    label: AnyLabel
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)

    shared: ClassVar[tuple[str, ...]] = ("columns", "image", "label")

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from label_contradictions(self.read_label, self.columns, path)
        yield from _Parquet.contradictions(self, path)

    def read(self, root: Path, reading: Reading) -> Raw:
        with importing_libraries("source parquet"):
            from dprecipe.data.sources.read_parquet import read_parquet

        return read_parquet(self.features_paths, self.columns, self.image, self.read_label, self.records, root, reading)


class PublicParquet(_Parquet):
    """A Parquet file: a table (`columns`) or images (`image`); exactly one of the two. No labels."""

    source: Literal["parquet"]
    path: Paths = Field(description=PATHS)
    columns: Columns | None = None
    image: ImageColumn | None = None
    label: AnyLabel | None = Field(None, description=UNREAD)
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"

    shared: ClassVar[tuple[str, ...]] = ("columns", "image")

    def read(self, root: Path, reading: Reading) -> Raw:
        with importing_libraries("source parquet"):
            from dprecipe.data.sources.read_parquet import read_parquet

        return read_parquet(self.features_paths, self.columns, self.image, None, self.records, root, reading)
