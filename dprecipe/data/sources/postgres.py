"""`postgres`: the result of a query over tables of a PostgreSQL database, in one transaction that writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dprecipe.data.query import RowOrigin, Rows, find_postgres_reason, has_filter
from dprecipe.data.sources.base import (
    ACCESS,
    UNREAD,
    Access,
    AnyLabel,
    ColumnLabelled,
    Columns,
)
from dprecipe.data.sources.duckdb import QUERY, QueryText, TableName
from dprecipe.data.sources.label_checks import label_contradictions
from dprecipe.data.sources.query_result import QueryResult
from dprecipe.faults import Finding

if TYPE_CHECKING:
    from dprecipe.data.raw import Raw, Reading

Variable = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]{0,99}$")]
Relation = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}\.[A-Za-z_][A-Za-z0-9_]{0,62}$")]
Relations = Annotated[dict[TableName, Relation], Field(min_length=1, max_length=100)]
CONNECTION = (
    "the name of an environment variable that holds the connection (a URI of libpq); never the connection itself"
)
RELATIONS = "the table of the database behind each name of the query, as schema.table"
ROWS = "`declared`: a view is named, and each of its rows depends on rows of its own unit alone"
VIEWS = "a view may be named, which the recipe does not show"


class _Postgres(QueryResult):
    if TYPE_CHECKING:
        connection: str
        tables: dict[str, str]
        query: str
        rows: Rows | None
        label: AnyLabel | None

    @property
    def files(self) -> Mapping[str, str]:
        return {}

    @property
    def features_paths(self) -> tuple[str, ...]:
        return ()

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

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_postgres import read_postgres

        label = self.read_label if isinstance(self, Postgres) else None
        views = self.rows is not None or not reading.private
        return read_postgres(self.connection, self.tables, self.query, views, self.columns, label, reading)


class Postgres(_Postgres, ColumnLabelled):
    """The result of a query over tables of a PostgreSQL database, read in one transaction that writes nothing."""

    source: Literal["postgres"]
    connection: Variable = Field(description=CONNECTION)
    tables: Relations = Field(description=RELATIONS)
    query: QueryText = Field(description=QUERY)
    rows: Rows | None = Field(None, description=ROWS)
    columns: Columns
    label: AnyLabel
    access: Access = Field("private_internal", description=ACCESS)

    shared: ClassVar[tuple[str, ...]] = ("connection", "query", "columns", "label", "rows")

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from label_contradictions(self.read_label, self.columns, path)
        yield from _Postgres.contradictions(self, path)


class PublicPostgres(_Postgres):
    """The result of a query over tables of a PostgreSQL database. No labels."""

    source: Literal["postgres"]
    connection: Variable = Field(description=CONNECTION)
    tables: Relations = Field(description=RELATIONS)
    query: QueryText = Field(description=QUERY)
    rows: Rows | None = Field(None, description=ROWS)
    columns: Columns
    label: AnyLabel | None = Field(None, description=UNREAD)
    access: Literal["public"] = "public"

    shared: ClassVar[tuple[str, ...]] = ("connection", "query", "columns", "rows")
