"""Sources whose records are the rows of a query's result: `duckdb`, over files, and `postgres`, over a database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from dprecipe.data.files import is_pattern, leaves_root
from dprecipe.data.query import (
    MAX_QUERY,
    RowOrigin,
    Rows,
    check_rows,
    find_postgres_reason,
    has_filter,
    keeps_column,
    needless_declaration,
)
from dprecipe.data.sources.base import Access, ColumnLabelled, Columns, Paths, TableSource, UnreadLabel, WithoutFiles
from dprecipe.data.sources.labels import AnyLabel
from dprecipe.data.sources.tables import Delimiter, wrong_delimiter
from dprecipe.faults import Finding

TableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,59}$")]
Tables = Annotated[dict[TableName, Paths], Field(min_length=1, max_length=100)]
QueryText = Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]
TABLES = "the files of each table that the query names: Parquet, or CSV, whose columns are texts"
QUERY = "SELECT … FROM a table WHERE …; its result is the table of records"
DUCKDB_ROWS = (
    "`declared`: the author declares that each row of the result depends on rows of its own unit alone, where the text "
    "of the query does not show that it depends on one row"
)
Variable = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]{0,99}$")]
Relation = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}\.[A-Za-z_][A-Za-z0-9_]{0,62}$")]
Relations = Annotated[dict[TableName, Relation], Field(min_length=1, max_length=100)]
CONNECTION = (
    "the name of an environment variable that holds the connection (a URI of libpq); never the connection itself"
)
RELATIONS = "the table of the database behind each name of the query, as schema.table"
POSTGRES_ROWS = "`declared`: a view is named, and each of its rows depends on rows of its own unit alone"
VIEWS = "a view may be named, which the recipe does not show"
PARQUET, CSV = (".parquet", ".pq"), (".csv", ".tsv", ".txt")


def format_of(path: str) -> str:
    """Returns `parquet` or `csv`, by the name of a file or of a pattern; empty for another."""
    name = PurePosixPath(path.removesuffix(".gz") if path.endswith(".gz") else path)
    suffix = name.suffix.lower()
    return "parquet" if suffix in PARQUET and not path.endswith(".gz") else "csv" if suffix in CSV else ""


class QueryResult(TableSource):
    """A source whose records are the rows of a query's result. It has no range of records: a query says which."""

    if TYPE_CHECKING:
        query: str
        rows: Rows | None
        tables: Mapping[str, Any]

    records: ClassVar[None] = None  # type: ignore[misc]

    def keeps_column(self, name: str) -> bool:
        return self.rows is None and keeps_column(self.query, tuple(self.tables), name)


class AnyDuckDb(QueryResult):
    """The result of a query that DuckDB runs, in both blocks."""

    source: Literal["duckdb"]
    tables: Tables = Field(description=TABLES)
    query: QueryText = Field(description=QUERY)
    rows: Rows | None = Field(None, description=DUCKDB_ROWS)
    columns: Columns
    label: AnyLabel | None
    delimiter: Delimiter = ","
    access: Access

    shared: ClassVar[tuple[str, ...]] = ("query", "columns", "delimiter", "rows")

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


class DuckDb(ColumnLabelled, AnyDuckDb):
    """The result of a query over Parquet and CSV files, which DuckDB runs, reading nothing else."""

    shared: ClassVar[tuple[str, ...]] = ("query", "columns", "label", "delimiter", "rows")


class PublicDuckDb(UnreadLabel, AnyDuckDb):
    """The result of a query over Parquet and CSV files, which DuckDB runs, reading nothing else. No labels."""


class AnyPostgres(WithoutFiles, QueryResult):
    """The result of a query that a PostgreSQL database runs, in both blocks."""

    source: Literal["postgres"]
    connection: Variable = Field(description=CONNECTION)
    tables: Relations = Field(description=RELATIONS)
    query: QueryText = Field(description=QUERY)
    rows: Rows | None = Field(None, description=POSTGRES_ROWS)
    columns: Columns
    label: AnyLabel | None
    access: Access

    shared: ClassVar[tuple[str, ...]] = ("connection", "query", "columns", "rows")

    @property
    def origins(self) -> tuple[tuple[str, str], ...]:
        return tuple((f"postgres:{self.connection}", table.lower()) for table in self.tables.values())

    @property
    def names_elsewhere(self) -> tuple[tuple[str, str], ...]:
        """Any variable may hold the connection, and any table may be behind a view."""
        view = "*" if self.rows is not None else ""
        return tuple(
            (f"postgres:{self.connection}/{table}", f"postgres:*/{view or table}") for table in self.tables.values()
        )

    @property
    def selection(self) -> RowOrigin | None:
        reason = find_postgres_reason(self.query, tuple(self.tables))
        declared = self.rows == "declared" and not reason  # of a view; a query is never more than its words show
        return RowOrigin(reason or (VIEWS if declared else ""), declared, has_filter(self.query), "query")

    def contradictions(self, path: str) -> Iterator[Finding]:
        reason = find_postgres_reason(self.query, tuple(self.tables))
        if reason and self.access == "public":
            yield Finding(
                "P144",
                f"a query of a database is SELECT … FROM one table WHERE …: {reason}",
                "make a view of it in the database, and name that in `tables`",
                f"{path}.query",
            )


class Postgres(ColumnLabelled, AnyPostgres):
    """The result of a query over tables of a PostgreSQL database, read in one transaction that writes nothing."""

    shared: ClassVar[tuple[str, ...]] = ("connection", "query", "columns", "label", "rows")


class PublicPostgres(UnreadLabel, AnyPostgres):
    """The result of a query over tables of a PostgreSQL database. No labels."""
