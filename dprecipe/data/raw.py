"""Interface between a source and the loader, and the checks that all sources share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.counts import ColumnCounts, SourceCounts
from dprecipe.data.facts import Role
from dprecipe.data.problems import Problems
from dprecipe.data.schema import UNKNOWN_SIZE, AnySource, Data, Split
from dprecipe.data.split import find_held_out, number_names, split_column
from dprecipe.data.storage import Storage
from dprecipe.data.tokens import SequenceTokens, Tokens
from dprecipe.data.units import Identities
from dprecipe.faults import DataFault
from dprecipe.text.spelling import fold_names

Labels = NDArray[np.int64] | NDArray[np.float32]
"""Class numbers; or numbers to be predicted, mapped from their declared range to [-1, 1]; or counts."""


@dataclass(frozen=True, slots=True, eq=False)
class TextValues:
    """The values (N,) of a column whose items a paid step releases; until then its features, from `start` on, are 0."""

    start: int
    values: Sequence[str]

    def select(self, rows: Iterable[int]) -> TextValues:
        """Returns the texts of some rows."""
        return TextValues(self.start, tuple(self.values[row] for row in rows))


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """The selected records of a source: features in the models' layout, labels, and what names the records, if a column
    does. Of each unit there are its first `max_records` records; of a source that a split divides, one side. `units` is
    the number of units in the whole source: of those on both sides.

    `texts` are the columns whose items a paid step releases, by name.

    Labels of a public source are zeros: its own labels are never read.
    """

    features: NDArray[np.generic]
    labels: Labels
    identities: Identities | None = None
    texts: Mapping[str, TextValues] = field(default_factory=dict)
    units: int | None = None


def drop_labels(count: int) -> NDArray[np.int64]:
    """Returns zeros (count,) instead of the labels of public records."""
    return np.zeros(count, np.int64)


MAX_ROWS_PER_RECORD = 100
"""Rows of a file for each record that its units may have. Rows beyond a unit's `max_records` are skipped, up to this
many."""
MAX_RECORDS = 10_000_000
"""Records of a set that declares neither a size nor a range."""


class Limits(Protocol):
    """Limits of reading a file: the rows that are read, and the place where its problems are collected."""

    @property
    def problems(self) -> Problems: ...
    @property
    def max_rows(self) -> int: ...
    def excess_fault(self, count: int | None = None) -> DataFault: ...
    def span(self, records: tuple[int, ...] | None, count: int, subject: str) -> slice: ...


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """Instructions for reading a source: the most rows, the column that names its records, whether it is private, and
    where its records are put."""

    data: Data
    role: Role
    private: bool
    name_column: str | None = None
    problems: Problems = field(default_factory=lambda: Problems(private=True))
    counts: SourceCounts = field(default_factory=SourceCounts)
    storage: Storage = field(default_factory=Storage)
    tokens: Tokens | SequenceTokens | None = None
    """Tokeniser of a `tokenize` or a `sequences` step."""

    @staticmethod
    def of(
        source: AnySource, data: Data, role: Role, name_column: str | None = None, storage: Storage | None = None
    ) -> Reading:
        """Returns the reading of a source in its role."""
        private = source.access != "public"
        return Reading(data, role, private, name_column, Problems(private), storage=storage or Storage())

    @property
    def split(self) -> Split | None:
        """Split of the source into two sides, one of which is read; None if all of it is read."""
        return None if self.role == "public" else self.data.split

    @property
    def reads_train(self) -> bool:
        """True if this source holds the training records; a split may read the other side of it."""
        return self.role == "train" or self.split is not None

    @property
    def naming_columns(self) -> tuple[str, ...]:
        """The columns whose texts name records or decide their sides, each once."""
        side = None if self.split is None else split_column(self.data)
        return tuple(dict.fromkeys(name for name in (self.name_column, side) if name is not None))

    @property
    def first_number(self) -> int:
        """The number in the source of the first of its records that are read."""
        return 0 if self.data.train.records is None else self.data.train.records[0]

    def fold(self, column: str, texts: Sequence[str]) -> Sequence[str]:
        """Returns the names that texts of a naming column stand for: one for all ways to write it, unless spelling is
        exact.
        """
        unit = self.data.unit
        is_exact = unit != "record" and unit.column == column and unit.spelling == "exact"
        return texts if is_exact else fold_names(texts)

    def select_side(self, texts: Mapping[str, Sequence[str]], first: int, rows: int) -> NDArray[np.int64]:
        """Selects the rows on the side of a split that is read: increasing places in [0, rows).

        `texts`: of the naming columns, folded. `first`: the number of rows before these, among those that `records`
        selects.
        """
        column = split_column(self.data)
        if self.split is None:
            return np.arange(rows)
        names = number_names(self.first_number + first, rows) if column is None else texts[column]
        held_out = np.array(find_held_out(names, self.split), np.bool_)
        return np.flatnonzero(held_out if self.role == "test" else ~held_out)

    @property
    def max_rows(self) -> int:
        """Upper bound on the rows that are read: `data.size` training records, or `MAX_ROWS_PER_RECORD` rows for each
        record that the declared units may have."""
        if not self.reads_train:
            return MAX_RECORDS
        unit = self.data.unit
        return self.data.max_units if unit == "record" else self.data.max_units * unit.max_records * MAX_ROWS_PER_RECORD

    @property
    def units(self) -> tuple[int, int] | None:
        """(number of units, records of each that are used); None if each record is a unit."""
        unit = self.data.unit
        return None if not self.reads_train or unit == "record" else (self.data.max_units, unit.max_records)

    def excess_fault(self, count: int | None = None) -> DataFault:
        """Returns the fault for a source with more than `max_rows`; `count`: how many it has, if known."""
        if self.units is None and self.reads_train:
            return size_fault(self.data, count)
        if self.reads_train:
            return DataFault(
                f"data.train has more than {self.max_rows:,} rows, {MAX_ROWS_PER_RECORD} for each record that "
                f"{self.data.max_units:,} units may have",
                "remove the rows that are not used, or declare the `size` and `max_records` that the file has",
            )
        return DataFault(
            f"data.{self.role} has more than {self.max_rows:,} records",
            f"take a part of them: data.{self.role}.records: [0, {self.max_rows}]",
        )

    def span(self, records: tuple[int, ...] | None, count: int, subject: str) -> slice:
        """Returns the records that `[first, end)` selects from `count`.

        Raises:
            DataFault: the source ends before `end`, or more are selected than may be read.
        """
        if records is None:
            if count > self.max_rows:
                raise self.problems.stop(self.excess_fault(count))
            return slice(0, count)
        first, end = records
        if end > count:
            raise self.problems.stop(
                self.problems.fault(
                    subject,
                    f"ends before the range `records: [{first}, {end}]` does",
                    "end the range where the file ends, or earlier",
                    f"{count:,} records",
                )
            )
        if end - first > self.max_rows:
            raise self.problems.stop(self.excess_fault(end - first))
        return slice(first, end)


def size_fault(data: Data, count: int | None) -> DataFault:
    """Returns the fault for training records whose number is not the declared one. The actual number may be secret: it
    is in the part of the fault that logs do not get.
    """
    unit = data.unit
    subject = "records" if unit == "record" else f"units (values of {unit.column})"
    known = f"more than {data.max_units:,} {subject}" if count is None else f"{count:,} {subject}"
    if data.hides_size:
        return DataFault(
            f"data.train has no {subject}, or more than the {data.max_units:,} that data.size declares at most",
            "declare a bound from domain knowledge that is never exceeded: that a run does not begin tells something "
            "of the number",
            known,
        )
    secret = (
        "a smaller number, select that many with data.train.records, and set budget.neighbouring: zero_out_one"
        if unit == "record"
        else f"a bound, {UNKNOWN_SIZE}"
    )
    return DataFault(
        f"data.train does not have the number of {subject} that data.size: {data.max_units} declares",
        f"if their number must not be public, declare {secret}. If it may be, declare the number that the file has: it "
        "sets the sampling rate and is in the certificate",
        known,
    )


def respelt_fault(data: Data, subject: str, place: str, problems: Problems) -> DataFault:
    """Returns the fault for a unit whose name is written in two ways. `subject`: the file; `place`: of a row in it."""
    column, most = ("", 1) if data.unit == "record" else (data.unit.column, data.unit.max_records)
    return problems.fault(
        f"{subject}, column {column!r}",
        "a name of a unit is written in another way than in a row before it (101, 101.0 and 0101 are one name in three "
        "spellings): one person would be two units",
        "write each name in one way in all rows; or, if names that differ in their spelling alone are of different "
        f"persons, declare it: unit: {{column: {column}, max_records: {most}, spelling: exact}}",
        place,
    )


def unordered_fault(data: Data) -> DataFault:
    """Returns the fault for a unit with too many rows in the result of a query that may join or group."""
    most = 1 if data.unit == "record" else data.unit.max_records
    column = "" if data.unit == "record" else data.unit.column
    return DataFault(
        f"data.train: a unit has more than the {most:,} rows that data.unit.max_records allows, and a query that is "
        "declared (`rows: declared`) gives its rows in an order that other units may decide: which are the first is "
        "not this unit's own",
        f"keep {most:,} rows of each unit in the query, by their own values: QUALIFY row_number() OVER (PARTITION BY "
        f"{column} ORDER BY …) <= {most} (of PostgreSQL: in the view); or declare the max_records that there are",
    )


def empty_side_fault(data: Data, role: Role) -> DataFault:
    """Returns the fault for a split that leaves one of its sides without a record."""
    return DataFault(
        f"data.{role}: the split of data.train leaves no record on this side",
        "write another share or seed in data.test.split, or divide by a column with more values",
    )


def class_labels(
    labels: NDArray[Any], classes: int, subject: str, problems: Problems, numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns whole labels as int64, each in [0, classes). Others are added to `problems`, by place and not by value.

    `numbers`: of the records in the source, (N,).
    """
    bad = np.flatnonzero(~((labels >= 0) & (labels < classes) & (labels == np.floor(labels))))
    if len(bad) > 0:
        problems.add(
            subject,
            f"a label is outside 0 … {classes - 1}" + (", or has a fraction" if labels.dtype.kind == "f" else ""),
            "declare `classes` as the number of classes that can occur, counted from 0, or mend the file",
            record_number(int(numbers[bad[0]])),
            len(bad),
        )
    with np.errstate(invalid="ignore"):  # what is no class is reported
        return labels.astype(np.int64)


def number_labels(
    labels: NDArray[np.generic], target: tuple[float, float], subject: str, reading: Reading, numbers: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Labels mapped as in `map_labels`. Those that are not finite are added to the reading's problems."""
    with np.errstate(over="ignore"):  # overflow becomes infinite
        values = labels.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad) > 0:
        place = record_number(int(numbers[bad[0]]))
        remedy = "mend the file, or write missing: omit beside `range` where NaN says that there is none"
        reading.problems.add(subject, "a label is not a finite number", remedy, place, len(bad))
    count_clamped(reading.counts.column("label", "label"), values, target)
    return map_labels(values, target)


def count_labels(
    labels: NDArray[np.generic], largest: int, subject: str, reading: Reading, numbers: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Returns counts, at most `largest`. What is none is added to the reading's problems."""
    values = labels.astype(np.float64)
    bad = np.flatnonzero(~is_count(values))
    if len(bad) > 0:
        place = record_number(int(numbers[bad[0]]))
        reading.problems.add(subject, NO_COUNT, "mend the file, or leave the records out", place, len(bad))
    count_clamped(reading.counts.column("label", "label"), values, (0.0, float(largest)))
    return limit_counts(values, largest)


NO_COUNT = "a label is not a whole number from 0 on"


def is_count(numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Marks the numbers that are whole and not negative; NaN is neither."""
    result: NDArray[np.bool_] = (numbers >= 0) & (np.floor(numbers) == numbers) & np.isfinite(numbers)
    return result


def limit_counts(numbers: NDArray[np.float64], largest: int) -> NDArray[np.float32]:
    """Counts clipped to the declared largest one."""
    return np.clip(np.nan_to_num(numbers), 0, largest).astype(np.float32)


def count_clamped(counts: ColumnCounts, numbers: NDArray[np.float64], target: tuple[float, float]) -> None:
    """Counts the numbers that lie outside a range, and those at its ends."""
    low, high = target
    if len(numbers) and low < numbers.min() and numbers.max() < high:
        return
    at_ends = [np.count_nonzero(at) for at in (numbers < low, numbers > high, numbers <= low, numbers >= high)]
    counts.numbers(*map(int, at_ends))


def record_number(number: int) -> str:
    """Returns the place of a record in a file without lines."""
    return f"record {number}, counted from 0"


def map_labels(numbers: NDArray[np.float64], target: tuple[float, float]) -> NDArray[np.float32]:
    """Numbers clipped to their declared range and mapped to [-1, 1]."""
    lowest, highest = target
    middle, half = lowest / 2 + highest / 2, highest / 2 - lowest / 2  # halves: the range itself may overflow
    unit: NDArray[np.float64] = (np.clip(numbers, lowest, highest) - middle) / half
    return np.clip(unit, -1.0, 1.0).astype(np.float32)


def channels_first(features: NDArray[np.generic]) -> NDArray[np.generic]:
    """Turns images (N, H, W) and (N, H, W, C) into (N, C, H, W); vectors stay."""
    if features.ndim == 3:
        return features[:, None]
    if features.ndim == 4:
        return np.ascontiguousarray(features.transpose(0, 3, 1, 2))
    return features
