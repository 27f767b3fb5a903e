"""`csv`: a table with a header line."""

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
)
from dprecipe.data.sources.label_checks import label_contradictions
from dprecipe.faults import Finding

if TYPE_CHECKING:
    from dprecipe.data.raw import Raw, Reading


Delimiter = Annotated[str, Field(min_length=1, max_length=1)]


class _Csv(SeveralFiles):
    if TYPE_CHECKING:
        columns: Columns
        delimiter: str

    @property
    def record_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def table_columns(self) -> Columns | None:
        return self.columns

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from super().contradictions(path)
        yield from wrong_delimiter(self.delimiter, path)


def wrong_delimiter(delimiter: str, path: str) -> Iterator[Finding]:
    """Yields the finding for a delimiter that can't separate fields; `path` is the source's."""
    if delimiter in '"\r\n\\' or not delimiter.isascii():
        yield Finding(
            "R217",
            "a delimiter is one ASCII character other than a quote, a backslash or a line break",
            "write the character between the fields of a line, such as ',' or ';' or \"\\t\"",
            f"{path}.delimiter",
        )


class Csv(_Csv, ColumnLabelled):
    """A table with a header line, plain or gzipped."""

    source: Literal["csv"]
    path: Paths = Field(description=PATHS)
    columns: Columns
    label: AnyLabel
    delimiter: Delimiter = ","
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)

    shared: ClassVar[tuple[str, ...]] = ("columns", "label", "delimiter")

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from label_contradictions(self.read_label, self.columns, path)
        yield from _Csv.contradictions(self, path)

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_csv import read_csv

        return read_csv(self.features_paths, self.columns, self.read_label, self.delimiter, self.records, root, reading)


class PublicCsv(_Csv):
    """A table with a header line. Columns that are not declared, and any label, are never read."""

    source: Literal["csv"]
    path: Paths = Field(description=PATHS)
    columns: Columns
    label: AnyLabel | None = Field(None, description=UNREAD)
    delimiter: Delimiter = ","
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"

    shared: ClassVar[tuple[str, ...]] = ("columns", "delimiter")

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_csv import read_csv

        return read_csv(self.features_paths, self.columns, None, self.delimiter, self.records, root, reading)
