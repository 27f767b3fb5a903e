"""The cost of one answer of an ensemble of teachers: Rényi bounds of noisy votes.

N teachers, each trained on its own part of the private data, vote for one of m classes; noise is added to the counts.
Two data sets that differ in one unit differ in one teacher, and on every query in one vote: n' = n - e_i + e_j. So the
counts move by sqrt(2) in L2 and by 2 in L1, and the largest of them, sorted or less public numbers, by 1.

Two kinds of bounds, and they must not be confused:

- data-independent: D_α(M(D)‖M(D')) <= r(α) for every pair of neighbours; functions of the `Voting` alone;
- data-dependent: the same at one D, as the first argument, against all its neighbours. It is no guarantee for other
  data sets and not symmetric, and being a function of the votes it is itself private (`sanitise` publishes it).

Notation: α order, n counts, q a bound of Pr[answer is not the plurality], σ standard deviation or b scale of the noise.
Axes: Q queries, M classes, A orders.

Sources: Papernot et al. 2017 (LNMax), Papernot et al. 2018 (GNMax, Confident- and Interactive-GNMax).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dprecipe.privacy import divergence
from dprecipe.privacy.divergence import Array

ORDERS: tuple[float, ...] = (
    *(1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4),
    *(k / 10 for k in range(15, 30)),
    *(k / 5 for k in range(15, 30)),
    *(k / 2 for k in range(12, 61)),
    *(float(k) for k in range(31, 65)),
    *(float(round(64 * 2 ** (k / 8))) for k in range(1, 60)),
)
"""Real orders: few votes have their optimum between integers, thousands of teachers beyond 500."""


@dataclass(frozen=True, slots=True)
class VoteSelection:
    """Only queries on which teachers agree are answered: the statistic, with noise, has to reach `threshold`.

    The statistic is the largest count, or the largest of n_j - N p_j with a student's public p; either moves by 1 at
    most. `multiplier` is the standard deviation of its Gaussian noise, in votes.
    """

    threshold: float
    multiplier: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ValueError(f"expected a finite threshold, got {self.threshold}")
        if not (self.multiplier > 0 and math.isfinite(self.multiplier)):
            raise ValueError(f"expected a finite multiplier > 0 of the selection's noise, got {self.multiplier}")


@dataclass(frozen=True, slots=True)
class Voting:
    """The way queries are answered: the class with the most votes after noise, if the query is selected.

    `teachers` N and `classes` m are public. `family` gaussian: GNMax, `multiplier` is σ. laplace: LNMax, `multiplier`
    is b = 1/γ. Noise is independent between classes and between queries.
    """

    teachers: int
    classes: int
    family: Literal["gaussian", "laplace"]
    multiplier: float
    selection: VoteSelection | None = None

    def __post_init__(self) -> None:
        if not (self.teachers >= 1 and self.classes >= 2):
            raise ValueError(f"expected teachers >= 1 and classes >= 2, got {self.teachers} and {self.classes}")
        if self.family not in ("gaussian", "laplace"):
            raise ValueError(f"expected the family gaussian or laplace, got {self.family!r}")
        if not (self.multiplier > 0 and math.isfinite(self.multiplier)):
            raise ValueError(f"expected a finite multiplier > 0, got {self.multiplier}")


def check_counts(counts_QM: ArrayLike, voting: Voting) -> NDArray[np.int64]:
    """The counts as integers, after a check that they are votes of this ensemble.

    Raises:
        ValueError: not a table of `classes` columns, negative or fractional counts, rows that don't sum to `teachers`.
    """
    counts: NDArray[Any] = np.asarray(counts_QM)
    if counts.ndim != 2 or counts.shape[1] != voting.classes:
        raise ValueError(f"expected counts of {voting.classes} classes for each query, got an array {counts.shape}")
    whole_QM = counts.astype(np.int64) if np.all(np.isfinite(counts)) else None
    if whole_QM is None or not np.array_equal(whole_QM, counts) or np.any(whole_QM < 0):
        raise ValueError("expected whole counts >= 0")
    wrong_Q = np.flatnonzero(whole_QM.sum(axis=1) != voting.teachers)
    if len(wrong_Q):
        total = int(whole_QM[wrong_Q[0]].sum())
        raise ValueError(f"query {wrong_Q[0]} has {total} votes of {voting.teachers} teachers")
    return whole_QM


def log_error(counts_QM: ArrayLike, family: str, multiplier: float) -> Array:
    """log of a bound of Pr[the answer is not the plurality], finite for all counts: (Q,).

    The union bound over the other classes, each by its gap to the largest count, and 1 - 1/m. A tie adds 1/2.

    Guarantees: an upper bound, up to 1e-13 relative in the probability's logarithm.
    Source: gaussian: Papernot et al. 2018, Proposition 7. laplace: Papernot et al. 2017, Lemma 4.
    """
    counts = np.asarray(counts_QM, dtype=np.float64)
    logs_QM = log_overtaken(counts.max(axis=1, keepdims=True) - counts, family, multiplier)
    np.put_along_axis(logs_QM, counts.argmax(axis=1)[:, None], -np.inf, axis=1)
    result_Q: Array = np.minimum(special.logsumexp(logs_QM, axis=1), math.log1p(-1 / counts.shape[1]))
    return result_Q


def log_overtaken(gaps: Array, family: str, multiplier: float) -> Array:
    """log Pr[a class `gaps` >= 0 votes behind another has more after noise]; convex in the gap, in probability.

    gaussian: Φ(-gap / (σ sqrt(2))). laplace: (2 + gap/b) exp(-gap/b) / 4.
    """
    if family == "gaussian":
        result: Array = special.log_ndtr(-gaps / (multiplier * math.sqrt(2)))
        return result
    return np.log(2 + gaps / multiplier) - math.log(4) - gaps / multiplier


def gnmax_rdp(log_q_Q: Array, sigma: float, orders: Sequence[float]) -> Array:
    """Data-dependent r(α) of one GNMax answer: (Q, A); at most α/σ².

    The orders μ₁ = μ₂ + 1, μ₂ = σ sqrt(log 1/q), of the helping bounds ε_i = μ_i/σ² are the best ones.

    Guarantees: bounds D_α(M(D)‖M(D')) at the D of the votes, as first argument, for every neighbour D'.
    Source: Papernot et al. 2018, Theorem 6 and Proposition 10, with the condition q exp(ε₂) < 1 that the theorem needs.
    """
    orders_A = np.asarray(orders, dtype=np.float64)
    independent_A = orders_A / sigma**2
    l_Q1 = np.asarray(log_q_Q, dtype=np.float64)[:, None]
    mu2_Q1 = sigma * np.sqrt(-l_Q1)
    usable_Q1 = mu2_Q1 > 1  # then q exp(ε₂) < 1 as well: -log q = μ₂²/σ² > μ₂/σ² = ε₂
    mu2_Q1 = np.where(usable_Q1, mu2_Q1, 2.0)
    l_Q1 = np.where(usable_Q1, l_Q1, -((2 / sigma) ** 2))
    mu1_Q1 = mu2_Q1 + 1
    e1_Q1, e2_Q1 = mu1_Q1 / sigma**2, mu2_Q1 / sigma**2
    limit_Q1 = (mu2_Q1 - 1) * e2_Q1 - mu2_Q1 * (np.log1p(1 / (mu1_Q1 - 1)) + np.log1p(1 / (mu2_Q1 - 1)))
    usable_QA = usable_Q1 & (l_Q1 <= limit_Q1) & (orders_A <= mu1_Q1)
    log_right_Q1 = _log1mexp(l_Q1)
    log_a_Q1 = log_right_Q1 - _log1mexp((l_Q1 + e2_Q1) * (1 - 1 / mu2_Q1))
    log_b_Q1 = e1_Q1 - l_Q1 / (mu1_Q1 - 1)
    bound_QA = np.logaddexp(log_right_Q1 + (orders_A - 1) * log_a_Q1, l_Q1 + (orders_A - 1) * log_b_Q1) / (orders_A - 1)
    return np.where(usable_QA, np.minimum(bound_QA, independent_A), independent_A)


def lnmax_rdp(log_q_Q: Array, scale: float, orders: Sequence[float]) -> Array:
    """Data-dependent r(α) of one LNMax answer: (Q, A); at most min(ε, ε² α/2) for its pure ε = 2/b.

    Guarantees: bounds D_α(M(D)‖M(D')) at the D of the votes, as first argument, for every neighbour D'.
    Source: Papernot et al. 2017, Theorems 2 and 3 (α = l + 1, the moment over l), the latter for q < 1/(1 + exp(ε)).
    """
    orders_A = np.asarray(orders, dtype=np.float64)
    pure = 2 / scale
    independent_A = np.minimum(pure, pure * pure / 2 * orders_A)
    l_Q1 = np.asarray(log_q_Q, dtype=np.float64)[:, None]
    usable_Q1 = l_Q1 < -np.logaddexp(0.0, pure)
    l_Q1 = np.where(usable_Q1, l_Q1, -pure - 1)
    log_right_Q1 = _log1mexp(l_Q1)
    right_QA = log_right_Q1 + (orders_A - 1) * (log_right_Q1 - _log1mexp(pure + l_Q1))
    bound_QA = np.logaddexp(right_QA, l_Q1 + (orders_A - 1) * pure) / (orders_A - 1)
    return np.where(usable_Q1, np.minimum(bound_QA, independent_A), independent_A)


def answer_rdp(counts_QM: ArrayLike, voting: Voting, orders: Sequence[float]) -> Array:
    """Data-dependent r(α) of answering each query once it is selected: `gnmax_rdp` or `lnmax_rdp` of its votes, (Q,
    A)."""
    return answer_rdp_of_error(log_error(counts_QM, voting.family, voting.multiplier), voting, orders)


def answer_rdp_of_error(log_q_Q: Array, voting: Voting, orders: Sequence[float]) -> Array:
    """As `answer_rdp`, of bounds of Pr[the answer is not the plurality]."""
    return (gnmax_rdp if voting.family == "gaussian" else lnmax_rdp)(log_q_Q, voting.multiplier, orders)


def independent_answer(voting: Voting, orders: Sequence[float]) -> Array:
    """Data-independent r(α) of one answer: (A,).

    Source: gaussian: α/σ², Papernot et al. 2018, Proposition 8. laplace: min(ε, ε² α/2) of a pure ε = 2/b, Papernot et
    al. 2017, Theorem 2; Bun & Steinke 2016, Proposition 3.3.
    """
    orders_A = np.asarray(orders, dtype=np.float64)
    if voting.family == "gaussian":
        return orders_A / voting.multiplier**2
    return np.minimum(2 / voting.multiplier, 2 / voting.multiplier**2 * orders_A)


def independent_check(selection: VoteSelection, orders: Sequence[float]) -> Array:
    """Data-independent r(α) = α/(2σ₁²) of one selection, passed or not: (A,). Its sensitivity is 1."""
    return np.asarray(orders, dtype=np.float64) / (2 * selection.multiplier**2)


def log_pass(statistic_Q: ArrayLike, selection: VoteSelection) -> tuple[Array, Array]:
    """log Pr[selected] and log Pr[not selected], each with its own full precision: (Q,) and (Q,)."""
    above_Q = (np.asarray(statistic_Q, dtype=np.float64) - selection.threshold) / selection.multiplier
    return special.log_ndtr(above_Q), special.log_ndtr(-above_Q)


def selected_rdp(statistic_Q: ArrayLike, selection: VoteSelection, answer_QA: Array, orders: Sequence[float]) -> Array:
    """Data-dependent r(α) of a selection and the answer it may lead to, taken together: (Q, A).

    With p = Pr[selected] here, p' at a neighbour and c the answer's bound, the largest over p' of

        log((1-p)^α (1-p')^(1-α) + p^α p'^(1-α) exp((α-1) c)) / (α-1).

    It is convex in p', so that the ends of its range are enough. No more than what the selection costs alone (c = 0)
    plus c, and hardly more than the expected cost; unlike that, a bound.

    Guarantees: bounds D_α(M(D)‖M(D')) for the pair (bit, answer), as first argument, for every neighbour D', if
    `answer_QA` does for the answer. Of zeros it is exact, at most `independent_check`: a Rényi divergence of two
    Bernoulli distributions grows with their distance.
    """
    orders_A = np.asarray(orders, dtype=np.float64)
    with np.errstate(divide="ignore"):
        gain_QA = (orders_A - 1) * answer_QA
        log_gain_QA = gain_QA + np.log(-np.expm1(-gain_QA))
    return _mixed(np.asarray(statistic_Q, dtype=np.float64), selection, log_gain_QA, orders)


def bound_rdp(
    counts_QM: ArrayLike,
    voting: Voting,
    orders: Sequence[float],
    *,
    answer_QA: Array | None = None,
    statistic_Q: ArrayLike | None = None,
) -> Array:
    """Data-dependent r(α) of each query, whatever happens to it: (Q, A). Sums over a list fixed in advance.

    `answer_QA` is a better bound of the answers than `answer_rdp` (`exact_votes.exact_gnmax_rdp`); `statistic_Q` is
    what the selection looks at where that is not the largest count.
    """
    if answer_QA is None:
        answer_QA = answer_rdp(counts_QM, voting, orders)
    if voting.selection is None:
        return answer_QA
    if statistic_Q is None:
        statistic_Q = np.asarray(counts_QM).max(axis=1)
    return selected_rdp(statistic_Q, voting.selection, answer_QA, orders)


def expected_cost(
    counts_QM: ArrayLike, voting: Voting, orders: Sequence[float], *, statistic_Q: ArrayLike | None = None
) -> Array:
    """Σ over queries of (cost of the selection + Pr[selected] · cost of the answer): (A,). NOT A BOUND of anything.

    The currency of the tables of Papernot et al. 2018, an expectation over which queries are selected, kept to compare
    with them. The selection's cost is theirs, too: Theorem 6 with noise sqrt(2) σ₁ and q the rarer outcome.
    """
    answer_QA = answer_rdp(counts_QM, voting, orders)
    if voting.selection is None:
        total_A: Array = answer_QA.sum(axis=0)
        return total_A
    if statistic_Q is None:
        statistic_Q = np.asarray(counts_QM).max(axis=1)
    log_p_Q, log_not_p_Q = log_pass(statistic_Q, voting.selection)
    check_QA = gnmax_rdp(np.minimum(log_p_Q, log_not_p_Q), math.sqrt(2) * voting.selection.multiplier, orders)
    costs_QA: Array = check_QA + np.exp(log_p_Q)[:, None] * answer_QA
    total_A = costs_QA.sum(axis=0)
    return total_A


def _mixed(statistic_Q: Array, selection: VoteSelection, log_gain_QA: Array, orders: Sequence[float]) -> Array:
    """The largest divergence of (bit, answer), with log(exp((α-1) c) - 1) of the answer's bound c."""
    orders_A = np.asarray(orders, dtype=np.float64)
    values_U, index_Q = np.unique(statistic_Q, return_inverse=True)
    yes_U, no_U = log_pass(values_U, selection)
    worst_QA = np.full((1, 1), -np.inf)
    for shift in (-1, 1):
        neighbour_yes_U, neighbour_no_U = log_pass(values_U + shift, selection)
        bit_UA = np.logaddexp(
            neighbour_yes_U[:, None] + divergence.log_term(yes_U - neighbour_yes_U, orders_A),
            neighbour_no_U[:, None] + divergence.log_term(no_U - neighbour_no_U, orders_A),
        )
        log_weight_UA = neighbour_yes_U[:, None] + orders_A * (yes_U - neighbour_yes_U)[:, None]
        worst_QA = np.maximum(worst_QA, np.logaddexp(bit_UA[index_Q], log_weight_UA[index_Q] + log_gain_QA))
    return divergence.from_excess(worst_QA, orders_A)


def _log1mexp(log_x: Array) -> Array:
    """log(1 - x) from log x < 0."""
    near_one = log_x > -math.log(2)
    return np.where(
        near_one,
        np.log(-np.expm1(np.where(near_one, log_x, -1.0))),
        np.log1p(-np.exp(np.where(near_one, -1.0, log_x))),
    )
