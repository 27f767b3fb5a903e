"""What a source hands to the loader, and the checks that all sources share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def unlabelled(count: int) -> NDArray[np.int64]:
    """What stands for the labels of public records."""
    return np.zeros(count, np.int64)


def span(records: tuple[int, ...] | None, count: int, what: str) -> slice:
    """The records that `[first, end)` selects out of `count`.

    Raises:
        DataFault: the source ends before `end`.
    """
    if records is None:
        return slice(0, count)
    first, end = records
    if end > count:
        raise DataFault(
            f"{what}: holds {count} records, and `records: [{first}, {end}]` asks for more",
            f"end the range at {count} or before",
        )
    return slice(first, end)


def class_labels(labels: NDArray[np.generic], classes: int, what: str, first: int = 0) -> NDArray[np.int64]:
    """Integer labels as int64, each in [0, classes).

    Raises:
        DataFault: a label is not; names the place of the first one, not its value.
    """
    bad = np.flatnonzero((labels < 0) | (labels >= classes))  # type: ignore[operator]
    if len(bad) > 0:
        raise DataFault(
            f"{what}: the label of record {first + int(bad[0])} (counted from 0) is outside 0 … "
            f"{classes - 1}; "
            f"{len(bad)} such labels in all",
            "declare `classes` as the number of classes that can occur, or mend the file",
        )
    return labels.astype(np.int64)


def number_labels(
    labels: NDArray[np.generic], target: tuple[float, float], what: str, first: int = 0
) -> NDArray[np.float32]:
    """Numbers as `mapped` has them.

    Raises:
        DataFault: one is not finite; names the place of the first one.
    """
    with np.errstate(over="ignore"):  # too large becomes infinite
        numbers = labels.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad) > 0:
        raise DataFault(
            f"{what}: the label of record {first + int(bad[0])} (counted from 0) is not a finite number; "
            f"{len(bad)} such labels in all",
            "mend the file, or leave the records out",
        )
    return mapped(numbers, target)


def mapped(numbers: NDArray[np.float64], target: tuple[float, float]) -> NDArray[np.float32]:
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
