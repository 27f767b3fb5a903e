"""What a source hands to the loader, and the checks that all sources share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.facts import Role
from dprecipe.data.problems import Problems
from dprecipe.data.schema import AnySource, Data
from dprecipe.data.tally import ColumnTally, Tally
from dprecipe.faults import DataFault

Labels = NDArray[np.int64] | NDArray[np.float32]
"""Class numbers, or numbers to be predicted, mapped from their declared range to [-1, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """The selected records of a source: features in the models' layout, labels, and the text that names each.

    Labels of a public source are zeros: what the source holds of them is never read.
    """

    features: NDArray[np.generic]
    labels: Labels
    names: tuple[str, ...] | None = None


def drop_labels(count: int) -> NDArray[np.int64]:
    """What stands for the labels of public records."""
    return np.zeros(count, np.int64)


MAX_ROWS_PER_RECORD = 100
"""Rows of a file for each record that its units may have: further ones of a unit are passed over, but not for ever."""
MAX_RECORDS = 10_000_000
"""Records of a set that declares no size and no range."""


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read: how much of it at most, what names its records, and who may know what of it."""

    data: Data
    role: Role
    private: bool
    name_column: str | None = None
    problems: Problems = field(default_factory=lambda: Problems(private=True))
    tally: Tally = field(default_factory=Tally)

    @staticmethod
    def of(source: AnySource, data: Data, role: Role, name_column: str | None = None) -> Reading:
        """Of a source in its role."""
        private = source.access != "public"
        return Reading(data, role, private, name_column, Problems(private))

    @property
    def most(self) -> int:
        """Rows that are read at most: of training records as many as are declared, and of units those of so many that
        have a hundred times the rows that count."""
        if self.role != "train":
            return MAX_RECORDS
        unit = self.data.unit
        return self.data.size if unit == "record" else self.data.size * unit.max_records * MAX_ROWS_PER_RECORD

    @property
    def units(self) -> tuple[int, int] | None:
        """How many units there are, and how many records of each are kept; None where each record is one."""
        unit = self.data.unit
        return None if self.role != "train" or unit == "record" else (self.data.size, unit.max_records)

    def too_many(self, count: int | None = None) -> DataFault:
        """The fault of a source that goes on beyond `most`; `count`: how many there are, where that is known."""
        if self.units is None and self.role == "train":
            return wrong_size(self.data, count)
        if self.role == "train":
            return DataFault(
                f"data.train has more than {self.most:,} rows, {MAX_ROWS_PER_RECORD} for each record that "
                f"{self.data.size:,} units may have",
                "leave out the rows that do not count, or declare the `size` and `max_records` that the file has",
            )
        return DataFault(
            f"data.{self.role} has more than {self.most:,} records",
            f"take a part of them: data.{self.role}.records: [0, {self.most}]",
        )

    def span(self, records: tuple[int, ...] | None, count: int, what: str) -> slice:
        """The records that `[first, end)` selects out of `count`.

        Raises:
            DataFault: the source ends before `end`, or more are selected than may be read.
        """
        if records is None:
            if count > self.most:
                raise self.problems.stop(self.too_many(count))
            return slice(0, count)
        first, end = records
        if end > count:
            raise self.problems.stop(
                self.problems.fault(
                    what,
                    f"ends before the range of `records: [{first}, {end}]` does",
                    "end the range where the file ends, or before",
                    f"{count:,} records",
                )
            )
        if end - first > self.most:
            raise self.problems.stop(self.too_many(end - first))
        return slice(first, end)


def wrong_size(data: Data, count: int | None) -> DataFault:
    """The fault of training records that are not as many as declared. By how much is not said where a log may have it:
    the exact number can be secret, and the declared one is public."""
    unit = data.unit
    what = "records" if unit == "record" else f"units (values of {unit.column})"
    known = f"more than {data.size:,} {what}" if count is None else f"{count:,} {what}"
    column = "" if unit == "record" else " and leave out the units beyond it"
    return DataFault(
        f"data.train does not hold as many {what} as data.size: {data.size} declares",
        "declare the number that the file has, if it may be public: it sets the sampling rate and is in the "
        f"certificate. Else declare a smaller one{column or ', take so many with data.train.records,'}"
        + ("" if column else " and set budget.neighbouring: zero_out_one"),
        known,
    )


def class_labels(
    labels: NDArray[np.generic], classes: int, what: str, problems: Problems, first: int = 0
) -> NDArray[np.int64]:
    """Integer labels as int64, each in [0, classes); others are told to `problems`, by place and not by value."""
    bad = np.flatnonzero((labels < 0) | (labels >= classes))  # type: ignore[operator]
    if len(bad) > 0:
        problems.add(
            what,
            f"a label is outside 0 … {classes - 1}",
            "declare `classes` as the number of classes that can occur, counted from 0, or mend the file",
            record_number(first + int(bad[0])),
            len(bad),
        )
    return labels.astype(np.int64)


def number_labels(
    labels: NDArray[np.generic], target: tuple[float, float], what: str, reading: Reading, first: int = 0
) -> NDArray[np.float32]:
    """Numbers as `map_labels` has them; those that are not finite are told to the reading's problems."""
    with np.errstate(over="ignore"):  # too large becomes infinite
        numbers = labels.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad) > 0:
        place = record_number(first + int(bad[0]))
        remedy = "mend the file, or leave the records out"
        reading.problems.add(what, "a label is not a finite number", remedy, place, len(bad))
    count_clamped(reading.tally.column("label", "label"), numbers, target)
    return map_labels(numbers, target)


def count_clamped(tally: ColumnTally, numbers: NDArray[np.float64], target: tuple[float, float]) -> None:
    """Add up the numbers that lie beyond a range, and at its ends."""
    low, high = target
    below, above = int((numbers < low).sum()), int((numbers > high).sum())
    tally.numbers(below, above, int((numbers <= low).sum()), int((numbers >= high).sum()))


def record_number(number: int) -> str:
    """The place of a record that has no line."""
    return f"record {number}, counted from 0"


def map_labels(numbers: NDArray[np.float64], target: tuple[float, float]) -> NDArray[np.float32]:
    """Numbers clipped to their declared range and mapped to [-1, 1]."""
    lowest, highest = target
    middle, half = lowest / 2 + highest / 2, highest / 2 - lowest / 2  # halves: the range itself may overflow
    unit: NDArray[np.float64] = (np.clip(numbers, lowest, highest) - middle) / half
    return np.clip(unit, -1.0, 1.0).astype(np.float32)


def channels_first(features: NDArray[np.generic]) -> NDArray[np.generic]:
    """(N, H, W) and (N, H, W, C) images to (N, C, H, W); vectors stay."""
    if features.ndim == 3:
        return features[:, None]
    if features.ndim == 4:
        return np.ascontiguousarray(features.transpose(0, 3, 1, 2))
    return features
