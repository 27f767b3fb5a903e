"""The one place where paid steps add noise: a statistic of private records to public constants.

The caller enters the release's event in the ledger first, and calls once: a second call is a second release. Scales
of noise are those of the event. Each function draws from a secret stream of its own, and what it returns is a function
of the statistic with its noise and of public numbers. A unit's rows that are not finite, or out of bounds, move a
statistic no further than others.

`units` is a *public* number of units: the declared size, or a count that was released; never the true one where that is
protected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final, overload

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.paid import covariance, items, moments
from dprecipe.data.paid.bounds import ColumnBounds
from dprecipe.data.paid.constants import (
    CountConstants,
    ItemConstants,
    MomentConstants,
    ProjectionConstants,
    QuantileConstants,
)
from dprecipe.data.paid.quantiles import draw_quantile, rank_values
from dprecipe.data.paid.rows import PART_ROWS, ReadRows, UnitRows
from dprecipe.data.paid.schema import DpCategories, DpPca, ItemStep, item_columns
from dprecipe.noise.entropy import Stream
from dprecipe.noise.lattice import add_gaussian, lattice_spacing

COLUMN_BYTES = 1 << 28
"""Values of columns that are in memory together, or of one column."""
NARROWEST = 2.0**-20
"""Released quantiles that are closer than this part of their bounds give way to the bounds."""


@dataclass(frozen=True, slots=True, eq=False)
class PrivateRows:
    """Rows, features and texts that a paid step reads.

    `read` gives features as they are after the steps before it, `rows` the rows of each unit, and `texts` the values
    (N,) of the columns whose items are released, by name.
    """

    read: ReadRows
    rows: UnitRows
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)


def release_count(private: PrivateRows, scale: float, stream: Stream) -> CountConstants:
    """Returns the number of units with N(0, scale²); one unit moves it by 1."""
    total = np.array([private.rows.count << items.COUNT_BITS])
    return CountConstants(units=float(add_gaussian(total, items.COUNT_BITS, scale, stream)[0]))


def release_right_answers(right: int, scale: float, stream: Stream) -> float:
    """Returns a number of right answers with N(0, scale²); one record moves it by 1 at most."""
    return float(add_gaussian(np.array([right << items.COUNT_BITS]), items.COUNT_BITS, scale, stream)[0])


def release_moments(
    private: PrivateRows, bounds: ColumnBounds, units: float, scale: float, square_weight: float, stream: Stream
) -> MomentConstants:
    """Returns mean and standard deviation of F columns, of (S1, `square_weight` S2) with N(0, scale²) on each of 2F
    numbers.

    Adding or removing a unit moves that vector by √F at most where `square_weight` <= 1, replacing one by 2√F where it
    is <= 1.665 (`moments`).
    """
    total = moments.sum_moments(private.read, private.rows, bounds)
    first = add_gaussian(total[0], moments.BITS, scale, stream)
    second = add_gaussian(total[1], moments.BITS, scale / square_weight, stream)
    mean, std = moments.estimate_scale(np.stack([first, second]), units, bounds)
    return MomentConstants(
        features=tuple(bounds.features.tolist()),
        low=tuple(bounds.low.tolist()),
        high=tuple(bounds.high.tolist()),
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
    )


def release_projection(
    step: DpPca, private: PrivateRows, units: float, scale: float, stream: Stream
) -> ProjectionConstants:
    """Returns the leading eigenvectors of Σ A with N(0, scale²) on the diagonal and N(0, scale²/2) on each entry above
    it.

    Adding or removing a unit moves Σ A by 1 at most in the Frobenius norm, replacing one by √2 (`covariance`).
    """
    noisy = _noisy_matrix(covariance.sum_covariance(private.read, private.rows, step.row_norm), scale, stream)
    basis, values = covariance.top_components(noisy, step.components, step.explained)
    n, width = max(units, 1.0), len(noisy)
    return ProjectionConstants(
        features=width,
        components=step.components,
        row_norm=step.row_norm,
        eigenvalues=tuple((values / n).tolist()),
        noise_edge=covariance.noise_edge(width, scale) / n,
        basis=ProjectionConstants.pack(basis),
    )


def _noisy_matrix(total: NDArray[np.int64], scale: float, stream: Stream) -> NDArray[np.float64]:
    noisy = np.zeros(total.shape)
    above = np.triu_indices(len(total), 1)
    noisy[above] = add_gaussian(total[above], covariance.BITS, scale / math.sqrt(2.0), stream)
    noisy += noisy.T
    np.fill_diagonal(noisy, add_gaussian(total.diagonal(), covariance.BITS, scale, stream))
    return noisy


def release_quantiles(
    private: PrivateRows,
    bounds: ColumnBounds,
    levels: tuple[float, float],
    weights: tuple[float, float],
    stream: Stream,
) -> QuantileConstants:
    """Returns the quantiles of each of F columns at two levels, each by an exponential mechanism of its own, of
    these β.

    Quantiles that cross are exchanged, and where they meet the bounds stand in for them.
    """
    ends = []
    for values, low, high in zip(_columns(private, bounds), bounds.low.tolist(), bounds.high.tolist(), strict=True):
        ranks = rank_values(values, private.rows, low, high)
        first, second = sorted(
            draw_quantile(ranks, level, weight, low, high, stream)
            for level, weight in zip(levels, weights, strict=True)
        )
        ends.append((first, second) if second - first > NARROWEST * (high - low) else (low, high))
    lows, highs = zip(*ends, strict=True)
    return QuantileConstants(features=tuple(bounds.features.tolist()), low=lows, high=highs)


def _columns(private: PrivateRows, bounds: ColumnBounds) -> Iterator[NDArray[np.float32]]:
    """Yields the values (N,) of each column. Records are read once for as many columns as fit into `COLUMN_BYTES`,
    which their number decides: that is how often they are read, and nothing else.
    """
    count, width = len(private.rows.order), len(bounds.features)
    at_once = max(1, COLUMN_BYTES // (4 * max(1, count)))
    for start in range(0, width, at_once):
        chosen = bounds.features[start : start + at_once]
        columns = np.empty((len(chosen), count), np.float32)
        for first in range(0, count, PART_ROWS):
            rows = np.arange(first, min(first + PART_ROWS, count))
            columns[:, rows[0] : rows[-1] + 1] = private.read(rows)[:, chosen].T
        yield from columns


@final
class _Items(Sequence[tuple[str, ...]]):
    """The items of each row's text, split when they are asked for."""

    def __init__(self, texts: Sequence[str], split: Callable[[str], tuple[str, ...]]) -> None:
        self._texts, self._split = texts, split

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> tuple[str, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[str, ...]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, ...] | Sequence[tuple[str, ...]]:
        if isinstance(index, slice):
            return _Items(self._texts[index], self._split)
        return self._split(self._texts[index])


def release_items(
    step: ItemStep, private: PrivateRows, scale: float, threshold: float, stream: Stream
) -> ItemConstants:
    """Returns the items whose number of units with N(0, scale²) reaches the threshold, and of each column at most
    `width`: those of the largest noisy numbers.

    A unit adds 1 to at most `items_of_unit(step)` of them (`items`).
    """
    names, is_category = item_columns(step), isinstance(step, DpCategories)
    split = items.items_of_value if is_category else items.items_of_words
    split_texts = [_Items(private.texts[name], split) for name in names]
    key = stream.words(items.KEY_BYTES // 8).tobytes()
    counts = items.count_items(split_texts, private.rows, step.max_items, key)
    noisy = add_gaussian(items.whole_counts(counts), items.COUNT_BITS, scale, stream)
    released: list[list[tuple[float, bytes, str]]] = [[] for _ in names]
    # what is accounted is the chance that the number itself reaches the threshold; rounding moves it by less than this
    rounding = max(lattice_spacing(scale), 2.0**-items.COUNT_BITS)
    for (column, text), count in zip(counts, noisy.tolist(), strict=True):
        if count >= threshold + rounding:
            released[column].append((-count, text.encode(), text))
    chosen = [sorted(column)[: step.width] for column in released]
    return ItemConstants(
        kind="dp_categories" if is_category else "dp_vocabulary",
        width=step.width,
        threshold=threshold,
        items=tuple(tuple(text for _, _, text in sorted(column, key=lambda item: item[1])) for column in chosen),
    )
