"""`datasets`: a folder of Hugging Face's `datasets`, as it is saved to disk or stored on the hub."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dprecipe.data.sources.base import (
    ACCESS,
    RECORDS,
    UNREAD,
    Access,
    AnyLabel,
    ColumnLabelled,
    Columns,
    FileSource,
    Records,
)
from dprecipe.data.sources.label_checks import label_contradictions
from dprecipe.data.sources.parquet import ImageColumn, TableOrImages
from dprecipe.faults import Finding
from dprecipe.language.base import Text
from dprecipe.libraries import importing_libraries

if TYPE_CHECKING:
    from dprecipe.data.raw import Raw, Reading

SplitName = Annotated[str, Field(pattern=r"^\w+([.-]\w+)*$", max_length=100)]
SPLIT = "the split to read, such as `train`; may be left out where there is one"


class _DatasetFolder(TableOrImages, FileSource):
    if TYPE_CHECKING:
        path: str
        split: str | None
        label: AnyLabel | None

    @property
    def origins(self) -> tuple[tuple[str, str], ...]:
        return ((posixpath.normpath(self.path), self.split or ""),)

    @property
    def folder_suffixes(self) -> tuple[str, ...]:
        return (".arrow", ".parquet")

    def features_files(self, root: Path) -> list[Path]:
        with importing_libraries("source datasets"):
            from dprecipe.data.sources.read_datasets import existing_shards

        return existing_shards(self.path, self.split, root)

    def all_files(self, root: Path) -> list[Path]:
        return self.features_files(root)

    def read(self, root: Path, reading: Reading) -> Raw:
        with importing_libraries("source datasets"):
            from dprecipe.data.sources.read_datasets import read_datasets

        label = self.read_label if isinstance(self, DatasetFolder) else None
        return read_datasets(self.path, self.split, self.columns, self.image, label, self.records, root, reading)


class DatasetFolder(_DatasetFolder, ColumnLabelled):
    """A folder of Hugging Face's `datasets` (`save_to_disk`, or a snapshot of the hub): a table or images."""

    source: Literal["datasets"]
    path: Text
    split: SplitName | None = Field(None, description=SPLIT)
    columns: Columns | None = None
    image: ImageColumn | None = None
    label: AnyLabel
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)

    shared: ClassVar[tuple[str, ...]] = ("columns", "image", "label")

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from label_contradictions(self.read_label, self.columns, path)
        yield from TableOrImages.contradictions(self, path)


class PublicDatasetFolder(_DatasetFolder):
    """A folder of Hugging Face's `datasets`: a table or images. No labels."""

    source: Literal["datasets"]
    path: Text
    split: SplitName | None = Field(None, description=SPLIT)
    columns: Columns | None = None
    image: ImageColumn | None = None
    label: AnyLabel | None = Field(None, description=UNREAD)
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"

    shared: ClassVar[tuple[str, ...]] = ("columns", "image")
