"""The records of a source as a reader hands them over, a chunk at a time, and their units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.name_numbers import NameNumbers, TooManyNames
from dprecipe.data.raw import Labels, Raw, Reading, TextValues, drop_labels, size_fault
from dprecipe.data.storage import TextWriter
from dprecipe.data.units import Identities


@final
class RecordCollector:
    """Chunks of features, labels, texts and names; `raw` are all of them.

        chosen = collector.choose(names)          # where records have names: which rows of the chunk are used
        collector.append(features, labels)        # of those rows

    They are put where the reading says (`dprecipe.data.storage`), so a source larger than memory takes no more of it
    than a chunk, a few numbers a record, and the table of names.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._features = reading.storage.rows("features")
        self._labels = reading.storage.rows("labels")
        self._texts: dict[str, TextWriter] = {}
        if reading.name_column is not None:
            self._table = NameNumbers(reading.data.max_units)
            self._numbers = reading.storage.rows("numbers")
            self._names = reading.storage.texts("names")

    def choose(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Which rows of the chunk are used, (B,), rising: of each unit the first `max_records` of the source, and all
        rows where a record is a unit.

        Raises:
            DataFault: there are more units than declared; the disk refuses.
        """
        reading = self._reading
        try:
            numbers, first_rows = self._table.number(names)
        except TooManyNames:
            raise reading.problems.stop(size_fault(reading.data, None)) from None
        self._names.append([names[row] for row in first_rows.tolist()])
        units = reading.units
        chosen = np.arange(len(names)) if units is None else self._table.bound(numbers, units[1])
        self._numbers.append(numbers[chosen])
        return chosen

    def append(self, features: NDArray[Any], labels: Labels) -> None:
        """Append the features (B, …) and labels of records.

        Raises:
            DataFault: the disk refuses.
        """
        self._features.append(features)
        self._labels.append(labels)

    def append_texts(self, name: str, values: Sequence[str]) -> None:
        """Append the values of a column whose items a paid step will release.

        Raises:
            DataFault: the disk refuses.
        """
        if name not in self._texts:
            self._texts[name] = self._reading.storage.texts(f"texts.{len(self._texts)}")
        self._texts[name].append(values)

    def raw(self, empty: NDArray[Any], starts: dict[str, int] | None = None) -> Raw:
        """All records. `empty`: features of no record. `starts`: where the features of each column of texts begin.

        Raises:
            DataFault: the disk refuses.
        """
        identities = None
        if self._reading.name_column is not None:
            identities = Identities(self._names.finish(), self._numbers.finish(np.zeros(0, np.int64)))
        texts = {}
        for name, start in (starts or {}).items():
            values = self._texts[name].finish() if name in self._texts else ()
            texts[name] = TextValues(start, values)
        return Raw(self._features.finish(empty), self._labels.finish(drop_labels(0)), identities, texts)
