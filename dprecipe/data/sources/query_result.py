"""What the sources share whose records are the rows of a query's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dprecipe.data.sources.base import Columns, SourceBlock


class QueryResult(SourceBlock):
    """A source whose records are the rows of a query's result. It has no range of records: a query says which."""

    if TYPE_CHECKING:
        columns: Columns

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
