"""The rows of each unit, together: what one unit contributes is a function of its own rows alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.preprocess import Floats

PART_ROWS = 1 << 13
ReadRows = Callable[[NDArray[np.int64]], Floats]
"""The prepared features of some rows, float32 (B, …)."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitRows:
    """N rows in the order of their U units: those of unit u are `order[starts[u]:starts[u + 1]]`."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    @staticmethod
    def of(units: NDArray[np.int64] | None, rows: int) -> UnitRows:
        """Groups rows by unit. `units`: (N,) ids, or None where each row is a unit of its own."""
        if units is None:
            return UnitRows(np.arange(rows), np.arange(rows + 1))
        order = np.argsort(units, kind="stable")
        changes = np.flatnonzero(np.diff(units[order], prepend=-1, append=-1))
        return UnitRows(order, changes if len(order) else np.zeros(1, np.int64))

    @property
    def count(self) -> int:
        """The number of units that have a row."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of rows of each unit, (U,)."""
        return np.diff(self.starts)

    def parts(self, rows: int = PART_ROWS) -> Iterator[UnitRows]:
        """Yields the units in parts of some `rows` rows; no unit is divided."""
        first = 0
        while first < self.count:
            last = int(np.searchsorted(self.starts, self.starts[first] + rows, side="right")) - 1
            last = min(max(last, first + 1), self.count)
            begin, end = self.starts[first], self.starts[last]
            yield UnitRows(self.order[begin:end], self.starts[first : last + 1] - begin)
            first = last

    def mean(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the mean over the rows of each unit, (U, …), of values (N, …) in the order of `order`."""
        if self.count == len(self.order):
            return values
        sums: NDArray[np.float64] = np.add.reduceat(values, self.starts[:-1], axis=0)
        return sums / self.sizes.reshape(-1, *[1] * (values.ndim - 1))


def finite_rows(x: Floats) -> NDArray[np.bool_]:
    """Marks the rows that are finite in all features; the others contribute nothing."""
    return np.asarray(np.isfinite(x.reshape(len(x), math.prod(x.shape[1:]))).all(axis=1))
