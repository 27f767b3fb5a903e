"""Smooth sensitivity of the data-dependent cost of a list of queries: its largest change when teachers change.

The cost of a query is bounded here by f(n₁, n₂), of its two largest counts alone, at one order α fixed in advance. One
changed teacher moves one vote, and one moved vote moves every sorted count by at most 1: sorting is 1-Lipschitz in the
largest difference, and n' = n - e_i + e_j differs from n by 1 at most in every class. So data sets within d changed
teachers have (n₁, n₂) within the square of radius d around this one, on every query at once, and a maximum over squares
of a table bounds what they can do. No property of f is used; nothing is assumed monotone or convex.

Only pairs are counted that some histogram has: n₁ >= n₂, n₁ + n₂ <= N, and the other m-2 classes, none above n₂, can
hold the rest. Paths between them may pass elsewhere, which makes squares larger, never smaller.

Notation: N teachers, m classes, f cost table, LS(d) largest change of the sum within d teachers.
Axes: S, T the counts n₁ = 0..N and n₂ = 0..N/2; Q queries, U different pairs, D distances.

Sources: Nissim, Raskhodnikova & Smith 2007 (smooth sensitivity); in place of Papernot et al. 2018, Algorithms 3 to 5.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dprecipe.mechanisms.pate.theory import votes
from dprecipe.mechanisms.pate.theory.votes import Voting
from dprecipe.privacy.divergence import Array

MAX_TEACHERS = 10_000
"""A table of 5e7 cells: 400 MB, and as much again at work."""
SMALLEST = 1e-7
"""Smooth sensitivities below it count as it: a constant is smooth, and noise must not drown in rounding."""

_AT_ONCE = 1 << 20


def query_costs(voting: Voting, order: float) -> Array:
    """f(n₁, n₂) at one order: (S, T), NaN where no histogram has that pair.

    Of all histograms with these two, as many classes as possible with n₂ votes and the rest in one more have the
    largest union bound, for each of its terms is convex in the count; so f bounds `votes.bound_rdp` for all of them.

    Raises:
        ValueError: more than `MAX_TEACHERS` teachers.
    """
    if voting.teachers > MAX_TEACHERS:
        raise ValueError(f"a table for {voting.teachers} teachers is too large; the most is {MAX_TEACHERS}")
    table_ST = np.full((voting.teachers + 1, voting.teachers // 2 + 1), np.nan)
    rows = max(1, _AT_ONCE // table_ST.shape[1])
    for start in range(0, len(table_ST), rows):
        block_ST = table_ST[start : start + rows]
        row_ST, second_ST = np.divmod(np.arange(block_ST.size).reshape(block_ST.shape), block_ST.shape[1])
        possible_ST = is_possible(start + row_ST, second_ST, voting)
        block_ST[possible_ST] = query_cost(start + row_ST[possible_ST], second_ST[possible_ST], voting, order)
    return table_ST


def is_possible(first: NDArray[np.int64], second: NDArray[np.int64], voting: Voting) -> NDArray[np.bool_]:
    """Tells if some histogram has these as its two largest counts."""
    others = voting.teachers - first - second
    result: NDArray[np.bool_] = (first >= second) & (others >= 0) & (others <= (voting.classes - 2) * second)
    return result


def query_cost(first_Q: NDArray[np.int64], second_Q: NDArray[np.int64], voting: Voting, order: float) -> Array:
    """f of possible pairs of counts, at one order: (Q,)."""
    log_q_Q = log_error(first_Q, second_Q, voting)
    answer_QA = votes.answer_rdp_of_error(log_q_Q, voting, [order])
    if voting.selection is not None:
        answer_QA = votes.selected_rdp(first_Q, voting.selection, answer_QA, [order])
    result_Q: Array = answer_QA[:, 0]
    return result_Q


def log_error(first_Q: NDArray[np.int64], second_Q: NDArray[np.int64], voting: Voting) -> Array:
    """log of a bound of Pr[the answer is not the plurality] for every histogram with these two largest counts: (Q,)."""
    others_Q = voting.teachers - first_Q - second_Q
    more_Q = others_Q // np.maximum(second_Q, 1)
    left_Q = others_Q - more_Q * second_Q
    overtaken_N = votes.log_overtaken(np.arange(voting.teachers + 1.0), voting.family, voting.multiplier)
    with np.errstate(divide="ignore"):
        parts_3Q = np.stack(
            [
                np.log(1.0 + more_Q) + overtaken_N[first_Q - second_Q],
                np.log(1.0 * (left_Q > 0)) + overtaken_N[first_Q - left_Q],
                np.log(np.maximum(voting.classes - 2.0 - more_Q - (left_Q > 0), 0.0)) + overtaken_N[first_Q],
            ]
        )
    top_Q = parts_3Q.max(axis=0)
    log_sum_Q = top_Q + np.log(np.exp(parts_3Q - top_Q).sum(axis=0))
    result_Q: Array = np.minimum(log_sum_Q, math.log1p(-1 / voting.classes))
    return result_Q


def two_largest(counts_QM: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """n₁ and n₂ of each query."""
    ordered_QM = np.sort(np.asarray(counts_QM, dtype=np.int64), axis=1)
    return ordered_QM[:, -1], ordered_QM[:, -2]


def local_sensitivities(costs_ST: Array) -> Array:
    """The largest change of f by one teacher, for each pair: (S, T), 0 where none is possible."""
    highest_ST = _widen_squares(np.where(np.isnan(costs_ST), -np.inf, costs_ST), 1)
    highest_ST -= costs_ST
    lowest_ST = _widen_squares(np.where(np.isnan(costs_ST), -np.inf, -costs_ST), 1)
    lowest_ST += costs_ST
    np.maximum(highest_ST, lowest_ST, out=highest_ST)
    highest_ST[np.isnan(costs_ST)] = 0.0
    return highest_ST


def at_distances(local_ST: Array, first_Q: NDArray[np.int64], second_Q: NDArray[np.int64]) -> Array:
    """LS(d), d = 0..N: the most that one teacher changes the queries' sum at any data set within d teachers: (D,).

    The largest entry of a square is that of four squares half its size, so one table of squares serves all radii up to
    twice its own.

    Guarantees: nondecreasing, and LS(d) here is at most LS(d+1) at every neighbour.
    """
    teachers = len(local_ST) - 1
    pairs_U2, times_U = np.unique(np.stack([first_Q, second_Q], axis=1), axis=0, return_counts=True)
    result_D = np.empty(teachers + 1)
    result_D[0] = times_U @ local_ST[pairs_U2[:, 0], pairs_U2[:, 1]]
    squares_ST, radius, start, largest = _widen_squares(local_ST, 1), 1, 1, float(local_ST.max(initial=0.0))
    span = max(1, _AT_ONCE // max(1, len(pairs_U2)))
    while start <= teachers:
        last = min(2 * radius, teachers)
        for low in range(start, last + 1, span):
            distances_D = np.arange(low, min(low + span, last + 1))
            largest_UD = _look_up_squares(squares_ST, radius, pairs_U2, distances_D)
            result_D[distances_D] = times_U @ largest_UD
            if largest_UD[:, -1].min(initial=largest) == largest:  # the squares hold the largest entry already
                result_D[low + len(distances_D) :] = result_D[distances_D[-1]]
                return result_D
        start, squares_ST, radius = last + 1, _widen_squares(squares_ST, radius), 2 * radius
    return result_D


def log_smooth(sensitivities_D: Array, beta: float) -> float:
    """log max_d exp(-β d) LS(d), at least log `SMALLEST`.

    Guarantees: it is at least log LS(0), and changes by at most β with one teacher.
    Source: Nissim, Raskhodnikova & Smith 2007, Definition 3.1 and Claim 3.2.
    """
    with np.errstate(divide="ignore"):
        logs_D = np.log(sensitivities_D) - beta * np.arange(len(sensitivities_D))
    return max(float(logs_D.max()), math.log(SMALLEST))


def _widen_squares(table_ST: Array, by: int) -> Array:
    """Squares of radius r made squares of radius r + by, by <= r + 1/2 (r = 0 allows 1: the centre is kept).

    A centre beyond the edge is taken to the edge; its square then still lies inside, and covers what is in the table.
    """
    for axis in (0, 1):
        indices = np.arange(table_ST.shape[axis])
        below = np.take(table_ST, np.maximum(indices - by, 0), axis=axis)
        np.maximum(below, np.take(table_ST, np.minimum(indices + by, indices[-1]), axis=axis), out=below)
        table_ST = np.maximum(below, table_ST)
    return table_ST


def _look_up_squares(
    squares_ST: Array, radius: int, pairs_U2: NDArray[np.int64], distances_D: NDArray[np.int64]
) -> Array:
    """The largest entry within each distance, radius <= d <= 2 radius, of each pair, of squares of `radius`: (U, D)."""
    largest_UD = np.zeros((len(pairs_U2), len(distances_D)))
    shift_D = distances_D - radius
    first_U1, second_U1 = pairs_U2[:, :1], pairs_U2[:, 1:]
    for sign_first in (-1, 1):
        for sign_second in (-1, 1):
            first_UD = np.clip(first_U1 + sign_first * shift_D, 0, squares_ST.shape[0] - 1)
            second_UD = np.clip(second_U1 + sign_second * shift_D, 0, squares_ST.shape[1] - 1)
            np.maximum(largest_UD, squares_ST[first_UD, second_UD], out=largest_UD)
    return largest_UD
