"""`duckdb`: the result of a query over Parquet and CSV files, run by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dprecipe.data.files import find_existing, is_pattern, leaves_root
from dprecipe.data.query import MAX_QUERY, RowOrigin, Rows, check_rows, has_filter, needless_declaration
from dprecipe.data.sources.base import (
    ACCESS,
    UNREAD,
    Access,
    AnyLabel,
    ColumnLabelled,
    Columns,
    Paths,
)
from dprecipe.data.sources.csv_table import Delimiter, wrong_delimiter
from dprecipe.data.sources.label_checks import label_contradictions
from dprecipe.data.sources.query_result import QueryResult
from dprecipe.faults import Finding
from dprecipe.libraries import importing_libraries

if TYPE_CHECKING:
    from dprecipe.data.raw import Raw, Reading

TableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,59}$")]
Tables = Annotated[dict[TableName, Paths], Field(min_length=1, max_length=100)]
QueryText = Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]
TABLES = "the files of each table that the query names: Parquet, or CSV, whose columns are texts"
QUERY = "SELECT … FROM a table WHERE …; its result is the table of records"
ROWS = (
    "`declared`: the author declares that each row of the result depends on rows of its own unit alone, where the text "
    "of the query does not show that it depends on one row"
)
PARQUET, CSV = (".parquet", ".pq"), (".csv", ".tsv", ".txt")


def format_of(path: str) -> str:
    """Returns `parquet` or `csv`, by the name of a file or of a pattern; empty for another."""
    name = PurePosixPath(path.removesuffix(".gz") if path.endswith(".gz") else path)
    suffix = name.suffix.lower()
    return "parquet" if suffix in PARQUET and not path.endswith(".gz") else "csv" if suffix in CSV else ""


class _DuckDb(QueryResult):
    if TYPE_CHECKING:
        tables: Tables
        query: str
        rows: Rows | None
        delimiter: str
        label: AnyLabel | None

    @property
    def paths(self) -> Mapping[str, tuple[str, ...]]:
        """The paths and patterns of each table."""
        return {name: (path,) if isinstance(path, str) else path for name, path in self.tables.items()}

    @property
    def files(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for name, path in self.tables.items():
            listed = {"": path} if isinstance(path, str) else {f".{number}": one for number, one in enumerate(path)}
            found |= {f"tables.{name}{key}": one for key, one in listed.items()}
        return found

    @property
    def features_paths(self) -> tuple[str, ...]:
        return tuple(self.files.values())

    def features_files(self, root: Path) -> list[Path]:
        return find_existing(self.features_paths, root)

    def format_of(self, key: str, path: str) -> str:
        return format_of(path)

    @property
    def selection(self) -> RowOrigin | None:
        return check_rows(self.query, tuple(self.tables), self.rows, has_filter(self.query))

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from wrong_delimiter(self.delimiter, path)
        yield from needless_declaration(self.query, tuple(self.tables), self.rows, path)
        for key, value in self.files.items():
            if is_pattern(value) and leaves_root(value):
                yield Finding(
                    "R240",
                    f"the pattern {value!r} leaves the data root",
                    "write a pattern relative to the data root (--data-root or $DPRECIPE_DATA), without `..`",
                    f"{path}.{key}",
                )
            elif not format_of(value):
                yield Finding(
                    "R242",
                    f"{value!r} is neither a Parquet nor a CSV file, by its name",
                    "name files that end in .parquet, .csv or .csv.gz",
                    f"{path}.{key}",
                )
        for name, paths in self.paths.items():
            if len({format_of(value) for value in paths}) > 1:
                remedy = "write a table of its own for each format"
                yield Finding("R242", f"table {name!r} mixes Parquet and CSV files", remedy, f"{path}.tables.{name}")

    def read(self, root: Path, reading: Reading) -> Raw:
        with importing_libraries("source duckdb"):
            from dprecipe.data.sources.read_duckdb import read_duckdb

        label = self.read_label if isinstance(self, DuckDb) else None
        private = reading.private and self.rows is None
        return read_duckdb(self.paths, self.query, private, self.delimiter, self.columns, label, root, reading)


class DuckDb(_DuckDb, ColumnLabelled):
    """The result of a query over Parquet and CSV files, which DuckDB runs, reading nothing else."""

    source: Literal["duckdb"]
    tables: Tables = Field(description=TABLES)
    query: QueryText = Field(description=QUERY)
    rows: Rows | None = Field(None, description=ROWS)
    columns: Columns
    label: AnyLabel
    delimiter: Delimiter = ","
    access: Access = Field("private_internal", description=ACCESS)

    shared: ClassVar[tuple[str, ...]] = ("query", "columns", "label", "delimiter", "rows")

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from label_contradictions(self.read_label, self.columns, path)
        yield from _DuckDb.contradictions(self, path)


class PublicDuckDb(_DuckDb):
    """The result of a query over Parquet and CSV files, which DuckDB runs, reading nothing else. No labels."""

    source: Literal["duckdb"]
    tables: Tables = Field(description=TABLES)
    query: QueryText = Field(description=QUERY)
    rows: Rows | None = Field(None, description=ROWS)
    columns: Columns
    label: AnyLabel | None = Field(None, description=UNREAD)
    delimiter: Delimiter = ","
    access: Literal["public"] = "public"

    shared: ClassVar[tuple[str, ...]] = ("query", "columns", "delimiter", "rows")
