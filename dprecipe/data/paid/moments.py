"""First and second moments of columns within declared bounds, for `dp_standardize`.

A value x in [a, b] becomes u = (x − m)/h in [-1, 1], m and h the middle and half the width. A row contributes the point
(u, u² − 1) of each column, a unit the mean of its rows' points, and what is released is

    S1 = Σ u and λ S2 = λ Σ (u² − 1), 2d numbers with Gaussian noise of one standard deviation.

Means of points lie in the hull of the parabola, R = {(p, q): p² <= q + 1 <= 1}, and so does (0, 0), the contribution
of a unit without a finite row. So sensitivities are those of R, for units with any number of rows, and of images with
any number of pixels in a channel, whose points are averaged likewise:

- add or remove, zero out: p² + λ²q² <= 1 on R for λ <= 1 (p² <= 1 + q, and q² <= -q): 1 a column. With λ = 1 the second
  moment costs nothing: S1 alone costs as much.
- replace: (p − p')² + λ²(q − q')² is convex in each point, so it is largest on the parabola, where it is
  (u − v)²(1 + λ²(u + v)²) <= 4 for λ² <= (11 + 5√5)/8: 2 a column. λ = 1.665 is as large as costs nothing.

All columns attain their largest together: √d and 2√d.

Points are rounded to multiples of 2^-30 within R (q up, p towards 0), so that sums are exact whole numbers and the
sensitivities hold without a margin.

Source: for one column and λ = 1 the trick is known as joint moment estimation (Kalinin et al. 2025).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.paid.bounds import ColumnBounds
from dprecipe.data.paid.rows import ReadRows, UnitRows, finite_rows
from dprecipe.data.preprocess import Floats
from dprecipe.privacy.adjacency import Neighbouring

BITS = 30
FREE_WEIGHT = 1.665
"""λ under replace-one."""
MAX_GROWTH = 100.0
"""No standard deviation is below this part of half the bounds' width: a public floor."""


def second_moment_weight(relation: Neighbouring) -> float:
    """Returns λ: the largest weight of the second moment that costs nothing."""
    return FREE_WEIGHT if relation is Neighbouring.REPLACE_ONE else 1.0


def sum_moments(read: ReadRows, rows: UnitRows, bounds: ColumnBounds) -> NDArray[np.int64]:
    """Returns S1 and S2 in units of 2^-30, exact, int64 (2, F).

    `read` gives rows as vectors (B, D) or images (B, C, H, W); `bounds.features` are their columns or channels.

    | case | contributes |
    |---|---|
    | a value outside the bounds | the nearer bound |
    | a row with a feature that is not finite | (0, 0) in the mean of its unit |
    | no unit at all | sums of 0 |
    """
    total = np.zeros((2, len(bounds.features)), np.int64)
    for part in rows.parts():
        total += _points(read(part.order), part, bounds).sum(axis=1)
    return total


def _points(x: Floats, part: UnitRows, bounds: ColumnBounds) -> NDArray[np.int64]:
    """Returns what each unit contributes, (2, U, F), within R exactly."""
    finite = finite_rows(x)
    with np.errstate(over="ignore", invalid="ignore"):
        columns = x.reshape(len(x), x.shape[1], -1)[:, bounds.features].astype(np.float64)  # (B, F, pixels)
        unit = (columns - bounds.middle[:, None]) / bounds.half[:, None]
    unit = np.clip(np.where(finite[:, None, None], unit, 0.0), -1.0, 1.0)
    first = unit.mean(axis=2)
    second = np.where(finite[:, None], np.square(unit).mean(axis=2) - 1.0, 0.0)
    one = 1 << BITS
    p = np.trunc(part.mean(first) * one).astype(np.int64)
    q = np.trunc(part.mean(second) * one).astype(np.int64)
    p = np.clip(p, -one, one)
    lowest = -((one * one - p * p) >> BITS)  # q + 1 >= p², rounded up
    return np.stack([p, np.clip(q, lowest, 0)])


def estimate_scale(
    noisy: NDArray[np.float64], units: float, bounds: ColumnBounds
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns mean and standard deviation, (F,) each, of noisy S1 and S2 (2, F): public numbers of public numbers.

    `units`: a *public* number of units: the declared size, or a released count; never the true one where that is
    protected. Below 1 it counts as 1. Means lie within the bounds and standard deviations from h/100 to h, h being half
    their width.
    """
    n = max(units, 1.0)
    mean = np.clip(noisy[0] / n, -1.0, 1.0)
    variance = np.clip(1.0 + noisy[1] / n - mean**2, MAX_GROWTH**-2, 1.0)
    # the middle and half of the width may add up to a little more than the upper bound
    scaled = np.clip(bounds.middle + bounds.half * mean, bounds.low, bounds.high)
    return scaled, bounds.half * np.sqrt(variance)
