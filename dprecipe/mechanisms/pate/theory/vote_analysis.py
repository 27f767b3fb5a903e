"""Costs of answering a list of queries, in every currency there is: for the private report.

All but the data-independent numbers are functions of the votes: private, and of this data set alone. What may be
published of them goes through `sanitise`.

Axes: Q queries, M classes, A orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dprecipe.mechanisms.pate.theory import exact_votes, votes
from dprecipe.mechanisms.pate.theory.votes import Voting
from dprecipe.privacy import conversion, gdp
from dprecipe.privacy.conversion import Optimum
from dprecipe.privacy.divergence import Array


@dataclass(frozen=True, slots=True)
class Converted:
    """ε at the analysis' δ by either conversion, each at its best order."""

    classic: Optimum
    improved: Optimum


@dataclass(frozen=True, slots=True)
class Analysis:
    """Costs of answering `queries` queries at `delta`.

    `expected_answers` Σ Pr[selected], `answers_deviation` its standard deviation over the selection's noise.
    `expected_cost` is the literature's figure and no bound (`votes.expected_cost`); `bound` is one, by Theorem 6 of
    2018 or Theorem 3 of 2017; `exact` the same with the answers' divergences computed exactly, None where not asked for
    or not GNMax. `independent_rdp` holds for all data sets, for the number of answers given; `independent_gdp`
    likewise, without the detour by Rényi orders (None for LNMax).
    """

    queries: int
    delta: float
    expected_answers: float
    answers_deviation: float
    expected_cost: Converted
    bound: Converted
    exact: Converted | None
    independent: Converted
    independent_gdp: float | None


def analyse_votes(
    counts_QM: ArrayLike,
    voting: Voting,
    delta: float,
    *,
    answers: int | None = None,
    exact: bool = True,
    orders: Sequence[float] = votes.ORDERS,
    progress: Callable[[int, int], None] | None = None,
) -> Analysis:
    """All costs of a list of queries that was fixed before the run (for any other: `realised_epsilon`).

    `answers` is how many were answered, by default all, for the data-independent figures. `progress` is told how many
    of how many different histograms the exact part has done.

    Raises:
        ValueError: counts that aren't votes of this ensemble (`votes.check_counts`), answers or δ out of range.
    """
    counts = votes.check_counts(counts_QM, voting)
    answers = len(counts) if answers is None else answers
    if not (0 <= answers <= len(counts) and 0 < delta < 1):
        raise ValueError(f"expected answers of {len(counts)} queries and 0 < delta < 1, got {answers} and {delta}")
    exactly = None
    if exact and voting.family == "gaussian":
        answer_QA = exact_votes.exact_gnmax_rdp(counts, voting.multiplier, orders, progress)
        exactly = _converted(votes.bound_rdp(counts, voting, orders, answer_QA=answer_QA).sum(axis=0), delta, orders)
    pass_Q = np.ones(len(counts))
    if voting.selection is not None:
        pass_Q = np.exp(votes.log_pass(counts.max(axis=1), voting.selection)[0])
    return Analysis(
        queries=len(counts),
        delta=delta,
        expected_answers=float(pass_Q.sum()),
        answers_deviation=math.sqrt(float((pass_Q * (1 - pass_Q)).sum())),
        expected_cost=_converted(votes.expected_cost(counts, voting, orders), delta, orders),
        bound=_converted(votes.bound_rdp(counts, voting, orders).sum(axis=0), delta, orders),
        exact=exactly,
        independent=_converted(independent_rdp(voting, len(counts), answers, orders), delta, orders),
        independent_gdp=gdp.epsilon(independent_mu(voting, len(counts), answers), delta)
        if voting.family == "gaussian"
        else None,
    )


def independent_rdp(voting: Voting, queries: int, answers: int, orders: Sequence[float]) -> Array:
    """Data-independent r(α) of `queries` selections, of which `answers` passed: (A,)."""
    total_A = answers * votes.independent_answer(voting, orders)
    return (
        total_A if voting.selection is None else total_A + queries * votes.independent_check(voting.selection, orders)
    )


def independent_mu(voting: Voting, queries: int, answers: int) -> float:
    """μ of the Gaussian mechanism that the selections and answers process: μ² = queries/σ₁² + 2 answers/σ².

    Guarantees: `gdp.epsilon(mu, δ)` is ε for all data sets. Source: Dong, Roth & Su 2022, Corollary 3.3.

    Raises:
        ValueError: LNMax, which no Gaussian mechanism dominates.
    """
    if voting.family != "gaussian":
        raise ValueError("LNMax is no Gaussian mechanism")
    squared = 2 * answers / voting.multiplier**2
    if voting.selection is not None:
        squared += queries / voting.selection.multiplier**2
    return math.sqrt(squared)


def _converted(rdp_A: Array, delta: float, orders: Sequence[float]) -> Converted:
    return Converted(
        classic=conversion.epsilon(orders, rdp_A, delta, "classic"),
        improved=conversion.epsilon(orders, rdp_A, delta),
    )
