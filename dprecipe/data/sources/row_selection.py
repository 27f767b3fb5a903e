"""Rows of files that are read one after the other, and those of them that `records` selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, final

from dprecipe.data.problems import Place, Problems
from dprecipe.data.values import Values
from dprecipe.faults import DataFault


class RowSink(Protocol):
    """Receiver of rows: the names of the columns that are read, those that may become numbers, and `add`."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def numeric(self) -> frozenset[str]: ...
    def add(self, columns: Mapping[str, Values], rows: int, place: Place) -> None: ...


@final
@dataclass(frozen=True, slots=True)
class RowLimit:
    """Limit on the rows that may be selected, and the fault for more."""

    rows: int
    fault: Callable[[], DataFault]


@final
class RowSelection:
    """The rows of all files as they come; those of `records` are for the sink."""

    def __init__(self, sink: RowSink, part: tuple[int, int | None], limit: RowLimit, problems: Problems) -> None:
        self.sink, self._limit, self._problems = sink, limit, problems
        self._first, self._end = part
        self.total = 0

    @property
    def ended(self) -> bool:
        """True if no later row is selected."""
        return self.total == self._end

    def count(self, rows: int) -> slice:
        """Counts rows, and returns which of them are selected.

        Raises:
            DataFault: there are more than may be read.
        """
        begin = min(max(self._first - self.total, 0), rows)
        stop = rows if self._end is None else min(self._end - self.total, rows)
        self.total += stop
        if self.total - self._first > self._limit.rows:
            raise self._problems.stop(self._limit.fault())
        return slice(begin, stop)
