"""The distance S by which one unit moves C x, for patterns of taking part; from the first column c of C.

A run of S at noise multiplier m is (S/m)-GDP for adding, removing or zeroing out a unit, whatever is chosen adaptively,
and (2 S/m)-GDP for replacing one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dprecipe.privacy.curves import Array
from dprecipe.privacy.events import check_positive


def separated_sensitivity(column_N: Array, separation: int, most: int) -> float:
    """Returns S of a unit that takes part at most `most` times, at any steps at least `separation` apart, in a run of
    len(`column_N`) steps. c must never increase.

    Guarantees: exact; the worst unit takes part at steps 0, s, 2 s, …
    Source: Kalinin & Lampert 2024 (arXiv 2405.13763), Theorem 2.
    """
    check_positive(separation=separation, most=most)
    _check_column(column_N)
    if np.any(np.diff(column_N) > 0):
        raise ValueError("expected coefficients that never increase: another pattern may cost more")
    moved_N = np.zeros(len(column_N))
    for start in range(0, min(len(column_N), separation * most), separation):
        moved_N[start:] += column_N[: len(column_N) - start]
    return math.sqrt(math.fsum(moved_N**2))


def ordered_sensitivity(column_N: Array, batches: int, attempts: Sequence[tuple[int, int]]) -> float:
    """Returns S of a unit that takes part at every `batches`-th step of a fixed order: always in one batch of a pass.

    `attempts`: (first step, number of steps) of each, at most len(`column_N`) steps. Noise begins again in each, in the
    same order of units. A run that stopped is one attempt; steps made twice are in two of them.

    Guarantees: exact. Attempts that follow one another cost no more than one of all their steps.
    Source: docs/explanation/accounting.md#correlated-noise.
    """
    check_positive(batches=batches)
    _check_column(column_N)
    if not all(start >= 0 and 0 < steps <= len(column_N) for start, steps in attempts):
        raise ValueError(f"expected attempts of at most {len(column_N)} steps, got {list(attempts)}")
    moved_N = column_N.astype(float)
    for start in range(batches, len(moved_N), batches):  # of a unit that took part at steps 0, B, 2 B, …
        moved_N[start : start + batches] += moved_N[start - batches : start][: len(moved_N) - start]
    square_N = np.concatenate([[0.0], np.cumsum(moved_N**2)])
    places_B = np.arange(batches)
    total_B = np.zeros(batches)
    for start, steps in attempts:
        seen_B = steps - (places_B - start) % batches
        total_B += square_N[np.maximum(seen_B, 0)]
    return math.sqrt(float(total_B.max()))


def _check_column(column_N: Array) -> None:
    if not (np.isfinite(column_N).all() and column_N.min() >= 0):
        raise ValueError("expected coefficients >= 0: with others, the worst unit is none of these")
