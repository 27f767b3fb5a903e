"""`json_lines`: a table of one JSON object a line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

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
)
from dprecipe.data.sources.label_checks import label_contradictions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dprecipe.data.raw import Raw, Reading
    from dprecipe.faults import Finding


class _JsonLines(SeveralFiles):
    if TYPE_CHECKING:
        columns: Columns

    @property
    def record_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def table_columns(self) -> Columns | None:
        return self.columns


class JsonLines(_JsonLines, ColumnLabelled):
    """A table of one JSON object a line, plain or gzipped; keys are columns."""

    source: Literal["json_lines"]
    path: Paths = Field(description=PATHS)
    columns: Columns
    label: AnyLabel
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)

    shared: ClassVar[tuple[str, ...]] = ("columns", "label")

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from label_contradictions(self.read_label, self.columns, path)
        yield from SeveralFiles.contradictions(self, path)

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_json_lines import read_json_lines

        return read_json_lines(self.features_paths, self.columns, self.read_label, self.records, root, reading)


class PublicJsonLines(_JsonLines):
    """A table of one JSON object a line. Columns that are not declared, and any label, are never read."""

    source: Literal["json_lines"]
    path: Paths = Field(description=PATHS)
    columns: Columns
    label: AnyLabel | None = Field(None, description=UNREAD)
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"

    shared: ClassVar[tuple[str, ...]] = ("columns",)

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_json_lines import read_json_lines

        return read_json_lines(self.features_paths, self.columns, None, self.records, root, reading)
