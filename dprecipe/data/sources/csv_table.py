"""`csv`: a table with a header line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dprecipe.data.sources.base import (
    ACCESS,
    RECORDS,
    UNREAD,
    Access,
    Columns,
    Label,
    Labelled,
    Records,
    SourceBlock,
    label_contradictions,
)
from dprecipe.faults import Finding
from dprecipe.language.base import Text

if TYPE_CHECKING:
    from dprecipe.data.raw import Raw, Reading


Delimiter = Annotated[str, Field(min_length=1, max_length=1)]


class _Csv(SourceBlock):
    if TYPE_CHECKING:
        path: str
        columns: Columns
        delimiter: str

    @property
    def record_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def table_columns(self) -> Columns | None:
        return self.columns

    @property
    def has_names(self) -> bool:
        return True

    @property
    def files(self) -> Mapping[str, str]:
        return {"path": self.path}

    @property
    def features_file(self) -> str | None:
        return self.path

    def contradictions(self, path: str) -> Iterator[Finding]:
        if self.delimiter in '"\r\n\\' or not self.delimiter.isascii():
            yield Finding(
                "R217",
                "a delimiter is one ASCII character, and no quote, backslash or line break",
                "write the character between the fields of a line, such as ',' or ';' or \"\\t\"",
                f"{path}.delimiter",
            )


class Csv(_Csv, Labelled):
    """A table with a header line, plain or gzipped."""

    source: Literal["csv"]
    path: Text
    columns: Columns
    label: Label
    delimiter: Delimiter = ","
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)

    @property
    def class_count(self) -> int:
        return self.label.class_count

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.label.values

    @property
    def target(self) -> tuple[float, float] | None:
        return self.label.target

    @property
    def described(self) -> frozenset[str]:
        return frozenset((*(self.table_columns or {}), self.label.column))

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from label_contradictions(self.label, self.columns, path)
        yield from _Csv.contradictions(self, path)

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_csv import read_csv

        return read_csv(self.path, self.columns, self.label, self.delimiter, self.records, root, reading)


class PublicCsv(_Csv):
    """A table with a header line; columns that are not declared, a label among them, are never read."""

    source: Literal["csv"]
    path: Text
    columns: Columns
    label: Label | None = Field(None, description=UNREAD)
    delimiter: Delimiter = ","
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_csv import read_csv

        return read_csv(self.path, self.columns, None, self.delimiter, self.records, root, reading)
