"""Base of sources whose records are the rows of a query's result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dprecipe.data.query import Rows, keeps_column
from dprecipe.data.sources.base import Columns, SourceBlock


class QueryResult(SourceBlock):
    """A source whose records are the rows of a query's result. It has no range of records: a query says which."""

    if TYPE_CHECKING:
        columns: Columns
        query: str
        rows: Rows | None
        tables: Mapping[str, Any]

    records: ClassVar[None] = None  # type: ignore[misc]

    @property
    def record_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def table_columns(self) -> Columns | None:
        return self.columns

    @property
    def has_names(self) -> bool:
        return True

    def keeps_column(self, name: str) -> bool:
        return self.rows is None and keeps_column(self.query, tuple(self.tables), name)
