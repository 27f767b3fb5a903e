"""Profile of a source's records: counts of values, classes and units.

They count private records, and are shown to their owner alone; no part of a recipe may be chosen by them.

Everything is counted from encoded records, so that what is shown is what a model would be given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.columns import PART_WIDTHS, Boolean, Category, ColumnBlock, Date, Integer, Ordinal, write_number
from dprecipe.data.counts import ColumnCounts, SequenceCounts, SourceCounts
from dprecipe.data.facts import ColumnFacts, Role, describe_data
from dprecipe.data.omitted import is_omitted
from dprecipe.data.records import Records
from dprecipe.data.schema import Data
from dprecipe.data.several import unpack_answers
from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget, SeveralTarget, Target, TokenTarget

BINS = 20
ROWS = 1 << 16
"""Records looked at together: features may be larger than memory."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HOURS = tuple(str(hour) for hour in range(24))


@final
@dataclass(frozen=True, slots=True)
class Bars:
    """Numbers of records that have each value, or lie in each interval.

    `names` and `counts` have the same length. `ends` are the labels at both ends of a drawing."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    ends: tuple[str, str]

    @staticmethod
    def of_values(names: Sequence[str], counts: Sequence[int]) -> Bars:
        """Makes the bars of separate values, at least one."""
        return Bars(tuple(names), tuple(counts), (names[0], names[-1]) if len(names) > 1 else (names[0], ""))

    @staticmethod
    def of_intervals(edges: Sequence[str], counts: Sequence[int]) -> Bars:
        """Makes the bars of intervals, given by their edges."""
        names = tuple(f"{low} to {high}" for low, high in pairwise(edges))
        return Bars(names, tuple(counts), (edges[0], edges[-1]))


@final
@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """One column: its counts, and its values where they can be shown."""

    name: str
    kind: str
    counts: ColumnCounts
    bars: Bars | None


@final
@dataclass(frozen=True, slots=True)
class SourceProfile:
    """One source. `units` and `by_unit`, how many units have how many records, are of training records with units."""

    role: Role
    records: int
    not_finite: int
    columns: tuple[ColumnProfile, ...]
    label: Bars | None
    label_counts: ColumnCounts | None
    units: int | None
    by_unit: Bars | None
    sequences: SequenceCounts | None = None
    """Counts of token sequences that were cut. The label is then the number of a record's tokens that are learned."""


def profile_source(records: Records, counts: SourceCounts, data: Data, role: Role) -> SourceProfile:
    """Returns the profile of a source, given its records before any step of preprocessing and what was counted on
    reading.
    """
    facts = describe_data(data, role)
    source = data.public if role == "public" else data.held_out if role == "test" else data.train
    declared = {} if source is None else source.table_columns or {}
    blank = ColumnCounts("")
    columns = tuple(
        ColumnProfile(
            place.name,
            declared[place.name].kind,
            counts.columns.get(place.name, blank),
            count_values(declared[place.name], place, records.features),
        )
        for place in facts.columns
    )
    own = {name: column for name, column in counts.columns.items() if column.kind == "label"}
    label = None if role == "public" else _count_labels(records, facts.target)
    return SourceProfile(
        role,
        len(records),
        counts.not_finite,
        columns,
        label,
        next(iter(own.values()), None),
        None if records.units is None else records.unit_count,
        None if records.units is None else _count_by_unit(records.units),
        counts.sequences if counts.sequences.length else None,
    )


def count_values(column: ColumnBlock, place: ColumnFacts, features: NDArray[np.generic]) -> Bars | None:
    """Counts the values of a column from its encoded features; None for texts."""
    if column.step == "hash" or place.width == 0:
        return None
    if isinstance(column, Category):
        return Bars.of_values((*column.values, "other"), _sums(features, place.start, place.width))
    if isinstance(column, Date):
        return _count_dates(column, place, features)
    if isinstance(column, Boolean):
        return Bars.of_values(column.values or ("no", "yes"), _steps(features, place.start, 2))
    if isinstance(column, Ordinal):
        return Bars.of_values(column.values, _steps(features, place.start, len(column.values)))
    limits = column.limits
    if limits is None:
        return None
    low, high = limits
    if isinstance(column, Integer) and high - low < BINS:
        names = tuple(str(value) for value in range(column.min, column.max + 1))
        return Bars.of_values(names, _steps(features, place.start, len(names)))
    return Bars.of_intervals(_write_edges(low, high), _bins(features, place.start))


def _write_edges(low: float, high: float) -> list[str]:
    """Returns the edges of the intervals. A share of each end: the width of the range may overflow."""
    edges = [low * ((BINS - bin_) / BINS) + high * (bin_ / BINS) for bin_ in range(BINS + 1)]
    return [write_number(float(f"{edge:.4g}")) for edge in edges]


def _count_dates(column: Date, place: ColumnFacts, features: NDArray[np.generic]) -> Bars:
    """Counts the days where `time` is a feature, else the first part."""
    names: Mapping[str, tuple[str, ...]] = {"month": MONTHS, "weekday": WEEKDAYS, "hour": HOURS}
    start = place.start
    for part in column.parts:
        if part == "time":
            days = (column.max - column.min).days
            edges = [str(column.min + timedelta(days=days * bin_ / BINS)) for bin_ in range(BINS + 1)]
            return Bars.of_intervals(edges, _bins(features, start))
        start += PART_WIDTHS[part]
    first = column.parts[0]
    return Bars.of_values(names[first], _sums(features, place.start, PART_WIDTHS[first]))


def _parts(features: NDArray[np.generic], start: int, width: int = 1) -> list[NDArray[np.float64]]:
    rows = range(0, len(features), ROWS)
    return [np.asarray(features[row : row + ROWS, start : start + width], np.float64) for row in rows]


def _sums(features: NDArray[np.generic], start: int, width: int) -> tuple[int, ...]:
    total = sum((part.sum(axis=0) for part in _parts(features, start, width)), np.zeros(width))
    return tuple(round(value) for value in total.tolist())


def _steps(features: NDArray[np.generic], start: int, count: int) -> tuple[int, ...]:
    """Counts of a feature that is one of `count` evenly spaced numbers from 0 to 1."""
    total = np.zeros(count, np.int64)
    for part in _parts(features, start):
        total += np.bincount(np.rint(part[:, 0] * (count - 1)).astype(np.int64), minlength=count)[:count]
    return tuple(total.tolist())


def _bins(features: NDArray[np.generic], start: int) -> tuple[int, ...]:
    total = np.zeros(BINS, np.int64)
    for part in _parts(features, start):
        total += np.histogram(part[:, 0], BINS, (0.0, 1.0))[0]
    return tuple(total.tolist())


def _count_labels(records: Records, target: Target) -> Bars:
    labels = np.asarray(records.labels)
    labels = labels[~is_omitted(labels)]
    match target:
        case ClassTarget(classes, names):
            counted = np.bincount(labels.astype(np.int64), minlength=classes)[:classes]
            return Bars.of_values(names or tuple(map(str, range(classes))), counted.tolist())
        case SeveralTarget(applying):
            parts = (labels[row : row + ROWS] for row in range(0, len(labels), ROWS))
            yes = sum((unpack_answers(part, len(applying)).sum(axis=0) for part in parts), np.zeros(len(applying), int))
            return Bars.of_values(applying, yes.tolist())
        case CountTarget(most) if most < BINS:
            counted = np.bincount(labels.astype(np.int64), minlength=most + 1)[: most + 1]
            return Bars.of_values(tuple(map(str, range(most + 1))), counted.tolist())
        case CountTarget(most):
            span, shown = (0.0, float(most)), (0.0, float(most))
        case NumberTarget(lowest, highest):
            span, shown = (-1.0, 1.0), (lowest, highest)
        case TokenTarget():  # how many tokens of a record are learned, in intervals of whole numbers
            width = -(-records.features.shape[-1] // BINS)
            span = shown = (0.0, float(width * BINS))
    return Bars.of_intervals(_write_edges(*shown), np.histogram(labels, BINS, span)[0].tolist())


def _count_by_unit(units: NDArray[np.int64]) -> Bars:
    sizes = np.bincount(np.bincount(units))
    return Bars.of_values(tuple(str(size) for size in range(1, len(sizes))), tuple(sizes[1:].tolist()))
