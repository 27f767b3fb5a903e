"""The records of a source as a reader hands them over, a chunk at a time, and their units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.name_numbers import NameNumbers, TooManyNames
from dprecipe.data.problems import Place
from dprecipe.data.raw import (
    Labels,
    Raw,
    Reading,
    TextValues,
    drop_labels,
    respelt_fault,
    size_fault,
    unordered_fault,
)
from dprecipe.data.storage import TextWriter
from dprecipe.data.units import Identities
from dprecipe.progress import LateProgress


@final
class RecordCollector:
    """Chunks of features, labels, texts and names; `raw` are all of them.

        chosen = collector.choose(texts, rows, place)    # which rows of the chunk are used; None: all of them
        collector.append(features, labels)        # of those rows

    They are put where the reading says (`dprecipe.data.storage`), so a source larger than memory takes no more of it
    than a chunk, a few numbers a record, and the table of names.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._features = reading.storage.rows("features")
        self._labels = reading.storage.rows("labels")
        self._texts: dict[str, TextWriter] = {}
        known = reading.role == "train" and reading.units is None and not reading.data.hides_size
        total = reading.data.max_units if known and reading.split is None else None
        self._progress = LateProgress("reading", "record", total, private=reading.private)
        self._rows = 0
        origin = reading.data.train.selection
        self._is_ordered = origin is None or not origin.declared
        if reading.split is not None and reading.name_column is None:
            self._own_numbers = reading.storage.rows("rows")
        if reading.name_column is not None:
            self._table, self._other_side = NameNumbers(reading.data.max_units), NameNumbers(reading.data.max_units)
            self._numbers = reading.storage.rows("numbers")
            self._names = reading.storage.texts("names")

    def choose(self, texts: Mapping[str, Sequence[str]], rows: int, place: Place) -> NDArray[np.int64] | None:
        """Chooses the rows of a chunk of `rows` that are used: their numbers, (B,), increasing; None for all.

        They are on the side of a split that is read, and are among the first `max_records` of their unit in the source.

        Guarantees: whether a row is used depends on the rows of its own unit alone (`dprecipe.data.split`). A database
        joins and groups in an order that other units' rows decide, so where that may be, no unit's rows are cut.

        `texts`: of the reading's `naming_columns`. `place`: of a row.

        Raises:
            DataFault: there are more units than declared, or more rows of one than are used where rows have no order
                of their own; a unit's name is written in two ways; the disk refuses.
        """
        reading, first = self._reading, self._rows
        self._rows += rows
        folded = {column: reading.fold(column, written) for column, written in texts.items()}
        side = None if reading.split is None else reading.select_side(folded, first, rows)
        if reading.name_column is None:
            if side is not None:
                self._own_numbers.append(reading.first_number + first + side)
            return side
        names, written, units = folded[reading.name_column], texts[reading.name_column], reading.units
        try:
            numbers, first_rows = self._number(self._table, names, written, side, place)
            if side is not None and units is not None:  # no unit is on both sides
                self._number(self._other_side, names, written, np.delete(np.arange(rows), side), place)
                if self._table.count + self._other_side.count > units[0]:
                    raise TooManyNames
        except TooManyNames:
            raise reading.problems.stop(size_fault(reading.data, None)) from None
        self._names.append([names[row] for row in (first_rows if side is None else side[first_rows]).tolist()])
        if units is not None:
            chosen = self._table.bound(numbers, units[1])
            if len(chosen) < len(numbers) and not self._is_ordered:
                raise reading.problems.stop(unordered_fault(reading.data))
            numbers, side = numbers[chosen], chosen if side is None else side[chosen]
        self._numbers.append(numbers)
        return None if side is not None and len(side) == rows else side

    def _number(
        self,
        table: NameNumbers,
        names: Sequence[str],
        written: Sequence[str],
        side: NDArray[np.int64] | None,
        place: Place,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns `table.number` of the rows of one side.

        Raises:
            TooManyNames: there are more than declared.
            DataFault: a unit's name is written in two ways.
        """
        if side is not None:
            rows, same = side.tolist(), written is names
            names = [names[row] for row in rows]
            written = names if same else [written[row] for row in rows]
        numbers, first_rows = table.number(names)
        if self._reading.units is not None:
            respelt = table.find_respelt(numbers, first_rows, names, written)
            if len(respelt):
                row = int(respelt[0] if side is None else side[respelt[0]])
                subject, _, within = place(row).partition(", ")
                problems = self._reading.problems
                raise problems.stop(respelt_fault(self._reading.data, subject, within, problems))
        return numbers, first_rows

    def append(self, features: NDArray[Any], labels: Labels) -> None:
        """Appends the features (B, …) and labels of records.

        Raises:
            DataFault: the disk refuses.
        """
        self._features.append(features)
        self._labels.append(labels)
        self._progress.show(self._features.count)

    def append_texts(self, name: str, values: Sequence[str]) -> None:
        """Appends the values of a column whose items a paid step will release.

        Raises:
            DataFault: the disk refuses.
        """
        if name not in self._texts:
            self._texts[name] = self._reading.storage.texts(f"texts.{len(self._texts)}")
        self._texts[name].append(values)

    def raw(self, empty: NDArray[Any], starts: dict[str, int] | None = None) -> Raw:
        """Returns all records. `empty`: features of no record. `starts`: where the features of each column of texts
        begin.

        Raises:
            DataFault: the disk refuses.
        """
        self._progress.end(self._features.count)
        identities = None
        if self._reading.name_column is not None:
            identities = Identities(self._names.finish(), self._numbers.finish(np.zeros(0, np.int64)))
        elif self._reading.split is not None:
            identities = Identities.numbers_in(self._own_numbers.finish(np.zeros(0, np.int64)))
        texts = {}
        for name, start in (starts or {}).items():
            values = self._texts[name].finish() if name in self._texts else ()
            texts[name] = TextValues(start, values)
        units = self._rows
        if self._reading.name_column is not None and self._reading.units is not None:
            units = self._table.count + self._other_side.count
        return Raw(self._features.finish(empty), self._labels.finish(drop_labels(0)), identities, texts, units)
