"""A quantile within declared bounds by the exponential mechanism, for `dp_quantiles`.

Candidates are the 2^32 + 1 points of an even grid between the bounds, whatever the data. A unit has weight 1, divided
among its rows; with rank(c) the weight below candidate c, W the weight of all, and q the level,

    P(c) ∝ exp(-β |rank(c) − q W|).

Adding a unit moves rank(c) − qW by at most max(q, 1 − q), and replacing one by at most 1: means over a unit's rows
move no further than one row. So the log of the ratio of two neighbours' probabilities lies in a range of ε₀ = 2β
max(q, 1 − q), or 2β under replace-one: bounded range, which costs a quarter of what ε₀ of pure DP does (Durfee &
Rogers 2019; Dong, Durfee & Rogers 2020). Candidates between two neighbouring values are alike, so an interval of them
is drawn by its probability and then a candidate in it; equal values have no interval between them.

**No floating point that leaks.** Values are put on the grid first, a map of each value alone. Ranks and the target are
whole numbers. Each interval gets a whole number as its weight, and a whole number below their sum is drawn without
bias, so what is drawn has exactly the probabilities that the weights say. Weights are within 2^-40 of exp(-β …), and
none is zero: a score that is more than `FARTHEST`/β beyond the best counts as that far, which every candidate is under
every neighbour alike. (With m the best score, min(s − m, F) moves as little as s − m.) So no output is possible of one
data set and impossible of another. What weights and whole numbers may be off is less than a part of 10^-6 of ε₀, and β
is smaller by that part.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.paid.rows import UnitRows
from dprecipe.noise.entropy import Stream

GRID_BITS = 32
WEIGHT_BITS = 30
"""A unit's weight of 1 in whole numbers."""
RANKED_ROWS = 1 << 20
"""Rows that are ranked at a time."""
BLOCK = 1 << 16
"""Intervals whose weights are in memory."""
FARTHEST = 64.0
"""Largest exponent: a weight of e^-64."""
_SHIFT = 160
"""Weights are multiples of 2^-160, and so within 2^-52 of what they should be."""
_MARGIN = 1 - 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """One column on the grid: distinct cells, rising (V,), and the whole weight of the values in each."""

    cells: NDArray[np.int64]
    weights: NDArray[np.int64]


def rank_values(values: NDArray[np.float32], rows: UnitRows, low: float, high: float) -> Ranks:
    """Returns the values (N,) of one column, in the rows' own numbering, by units of weight 1.

    A value outside the bounds counts as the nearer one. A row whose value is not finite has no weight. Memory is that
    of a part and of a few arrays like the result.
    """
    ranks = Ranks(np.zeros(0, np.int64), np.zeros(0, np.int64))
    waiting: list[Ranks] = []
    for part in rows.parts(RANKED_ROWS):
        waiting.append(_rank_part(values[part.order].astype(np.float64), part, low, high))
        if sum(len(some.cells) for some in waiting) > len(ranks.cells):
            ranks, waiting = _merge_ranks([ranks, *waiting]), []
    return _merge_ranks([ranks, *waiting])


def _rank_part(ordered: NDArray[np.float64], part: UnitRows, low: float, high: float) -> Ranks:
    weights = np.repeat((1 << WEIGHT_BITS) // part.sizes, part.sizes)
    finite = np.isfinite(ordered)
    span = high / 2 - low / 2
    position = (np.clip(ordered[finite], low, high) / 2 - low / 2) / span
    cells = np.floor(np.clip(position, 0.0, 1.0) * 2.0**GRID_BITS).astype(np.int64)
    return _merge_ranks([Ranks(cells, weights[finite])])


def _merge_ranks(parts: Sequence[Ranks]) -> Ranks:
    """Returns one weight for each cell: the sum of its weights, exactly."""
    cells = np.concatenate([part.cells for part in parts])
    weights = np.concatenate([part.weights for part in parts])
    order = np.argsort(cells, kind="stable")
    cells, weights = cells[order], weights[order]
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    if not len(starts):
        return Ranks(cells, weights)
    return Ranks(cells[starts], np.add.reduceat(weights, starts))


@final
class Intervals:
    """The intervals of candidates between cells, in order; they cover the grid. Their weights are whole numbers of more
    than a hundred bits, so they are computed a block at a time.

    Candidate c has the cells below it: interval i goes from just after cell i - 1 to cell i.
    """

    def __init__(self, ranks: Ranks, level: float, rank_weight: float) -> None:
        self.first = np.concatenate([[0], ranks.cells + 1])
        """The first candidate of each interval."""
        below = np.concatenate([[0], np.cumsum(ranks.weights)])
        numerator, denominator = float(level).as_integer_ratio()
        target = numerator * int(below[-1]) // denominator  # exact: whole numbers of any size
        below -= target
        self._scores = np.abs(below, out=below)
        self._best = self._scores[self.lengths(slice(None)) > 0].min()  # at least one is: lengths add up to the grid
        self._rank_weight = rank_weight

    def __len__(self) -> int:
        return len(self.first)

    def lengths(self, part: slice) -> NDArray[np.int64]:
        """Returns the number of candidates of each interval."""
        start, stop, _ = part.indices(len(self))
        end = [(1 << GRID_BITS) + 1] if stop == len(self) else self.first[stop : stop + 1]
        return np.diff(self.first[start:stop], append=end)

    def weights(self, part: slice) -> list[int]:
        """Returns the whole weights of intervals."""
        scores = self._scores[part] - self._best
        exponents = np.minimum(scores * (_MARGIN * self._rank_weight * 2.0**-WEIGHT_BITS), FARTHEST)
        mantissa, power = np.frexp(np.exp(-np.maximum(exponents, 0.0)))
        whole = np.ldexp(mantissa, 53).astype(np.int64)
        return [
            (int(w) << (_SHIFT - 53 + int(p))) * length if length else 0
            for w, p, length in zip(whole, power, self.lengths(part).tolist(), strict=True)
        ]

    def blocks(self) -> list[slice]:
        """Returns all intervals, some at a time."""
        return [slice(start, min(start + BLOCK, len(self))) for start in range(0, len(self), BLOCK)]


def draw_quantile(ranks: Ranks, level: float, rank_weight: float, low: float, high: float, stream: Stream) -> float:
    """Returns a candidate of [low, high], by the exponential mechanism with β = `rank_weight`.

    No value at all: any candidate, evenly.
    """
    intervals = Intervals(ranks, level, rank_weight)
    blocks = intervals.blocks()
    cumulated = list(itertools.accumulate(sum(intervals.weights(block)) for block in blocks))
    drawn = draw_below(cumulated[-1], stream)
    number = bisect_right(cumulated, drawn)
    drawn -= cumulated[number - 1] if number else 0
    within = list(itertools.accumulate(intervals.weights(blocks[number])))
    interval = blocks[number].start + bisect_right(within, drawn)
    (length,) = intervals.lengths(slice(interval, interval + 1)).tolist()
    candidate = int(intervals.first[interval]) + draw_below(length, stream)
    share = candidate * 2.0**-GRID_BITS
    return float(min(max(low * (1 - share) + high * share, low), high))


def draw_below(bound: int, stream: Stream) -> int:
    """Returns a uniform whole number in [0, bound), without any bias: what is too large is drawn again."""
    if bound < 1:
        raise ValueError(f"expected a bound from 1 on, got {bound}")
    bits = (bound - 1).bit_length()
    while True:
        words = stream.words((bits + 63) // 64)
        drawn = int.from_bytes(words.astype("<u8").tobytes(), "little") & ((1 << bits) - 1)
        if drawn < bound:
            return drawn
