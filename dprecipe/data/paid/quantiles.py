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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.paid.rows import UnitRows
from dprecipe.noise.entropy import Stream

GRID_BITS = 32
WEIGHT_BITS = 30
"""A unit's weight of 1 in whole numbers."""
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
    """The values (N,) of one column, in the rows' own numbering, by units of weight 1.

    A value outside the bounds counts as the nearer one. A row whose value is not finite has no weight.
    """
    ordered = values[rows.order].astype(np.float64)
    weights = np.repeat((1 << WEIGHT_BITS) // rows.sizes, rows.sizes)
    finite = np.isfinite(ordered)
    span = high / 2 - low / 2
    position = (np.clip(ordered[finite], low, high) / 2 - low / 2) / span
    cells = np.floor(np.clip(position, 0.0, 1.0) * 2.0**GRID_BITS).astype(np.int64)
    distinct, inverse = np.unique(cells, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, inverse, weights[finite])
    return Ranks(distinct, total)


def interval_weights(ranks: Ranks, level: float, rank_weight: float) -> tuple[list[int], list[int]]:
    """The first candidate of each interval, and its whole weight; intervals are in order and cover the grid.

    Candidate c has the cells below it: interval i goes from just after cell i - 1 to cell i.
    """
    first = np.concatenate([[0], ranks.cells + 1])
    lengths = np.diff(first, append=(1 << GRID_BITS) + 1)
    below = np.concatenate([[0], np.cumsum(ranks.weights)])
    numerator, denominator = float(level).as_integer_ratio()
    target = numerator * int(below[-1]) // denominator  # exact: whole numbers of any size
    scores = np.abs(below - target)
    best = scores[lengths > 0].min()  # at least one is: lengths add up to the grid
    exponents = np.minimum((scores - best) * (_MARGIN * rank_weight * 2.0**-WEIGHT_BITS), FARTHEST)
    mantissa, power = np.frexp(np.exp(-np.maximum(exponents, 0.0)))
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    weights = [
        int(w) << (_SHIFT - 53 + int(p)) if length else 0 for w, p, length in zip(whole, power, lengths, strict=True)
    ]
    return first.tolist(), [w * int(length) for w, length in zip(weights, lengths, strict=True)]


def draw_quantile(ranks: Ranks, level: float, rank_weight: float, low: float, high: float, stream: Stream) -> float:
    """A candidate of [low, high], by the exponential mechanism with β = `rank_weight`.

    No value at all: any candidate, evenly.
    """
    first, weights = interval_weights(ranks, level, rank_weight)
    cumulated = list(itertools.accumulate(weights))
    drawn = draw_below(cumulated[-1], stream)
    interval = bisect_right(cumulated, drawn)
    last = first[interval + 1] if interval + 1 < len(first) else (1 << GRID_BITS) + 1
    candidate = first[interval] + draw_below(last - first[interval], stream)
    share = candidate * 2.0**-GRID_BITS
    return float(min(max(low * (1 - share) + high * share, low), high))


def draw_below(bound: int, stream: Stream) -> int:
    """A uniform whole number in [0, bound), without any bias: what is too large is drawn again."""
    if bound < 1:
        raise ValueError(f"expected a bound from 1 on, got {bound}")
    bits = (bound - 1).bit_length()
    while True:
        words = stream.words((bits + 63) // 64)
        drawn = int.from_bytes(words.astype("<u8").tobytes(), "little") & ((1 << bits) - 1)
        if drawn < bound:
            return drawn
