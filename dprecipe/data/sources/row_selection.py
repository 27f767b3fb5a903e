"""Rows of text files that are read one after the other, and those of them that `records` selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from dprecipe.data.files import READ_ERRORS, DataFile, locate_files
from dprecipe.data.problems import Place, Problems
from dprecipe.data.raw import Reading
from dprecipe.data.sources.tables import AnyCsv, AnyJsonLines
from dprecipe.data.table import Collector
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

    def read(self, files: Sequence[DataFile], read_file: Callable[[DataFile, RowSelection], None], empty: str) -> None:
        """Reads files until no later row is selected. `empty`: the fault of files without a row.

        Raises:
            DataFault: a file is damaged, there is no row, or as `read_file`.
        """
        for file in files:
            if self.ended:
                break
            try:
                read_file(file, self)
            except READ_ERRORS as error:
                raise self._problems.stop(file.unreadable(error)) from error
        if self.total == 0:
            raise self._problems.stop(files[0].fault(empty, "name another file"))

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


def select_records(
    source: AnyCsv | AnyJsonLines, root: Path, reading: Reading
) -> tuple[Sequence[DataFile], Collector, RowSelection]:
    """Returns the files of a table of texts, the collector of its records, and the selection of its rows.

    Raises:
        DataFault: a file is missing, or more records are selected than are declared.
    """
    files = locate_files(source.features_paths, root)
    collector = Collector(source.columns, reading.data.preprocess, source.read_label, reading)
    first, end = source.records if source.records is not None else (0, None)
    if end is not None and end - first > reading.max_rows:
        raise reading.excess_fault(end - first)
    limit = RowLimit(reading.max_rows, reading.excess_fault)
    return files, collector, RowSelection(collector, (first, end), limit, reading.problems)
