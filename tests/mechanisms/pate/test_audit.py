"""A simulated audit: five teachers, three classes, every histogram and every moved vote.

The distribution of each aggregator's outcome is integrated here, without the product's code; it never exceeds the claim
between neighbours, in either direction, for one query and for several; and the product's ballot draws from just that
distribution.

Axes: H histograms, O outcomes (the classes, then "no answer").
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dprecipe.mechanisms.pate.aggregators import (
    Aggregator,
    ConfidentGnMaxAggregator,
    GnMaxAggregator,
    InteractiveGnMaxAggregator,
    LnMaxAggregator,
    noise,
)
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge

TEACHERS, CLASSES = 5, 3
HISTOGRAMS = [
    (a, b, TEACHERS - a - b) for a in range(TEACHERS + 1) for b in range(TEACHERS + 1 - a)
]  # fmt: skip
MOVES = [
    (i, j)
    for i, n in enumerate(HISTOGRAMS)
    for j, other in enumerate(HISTOGRAMS)
    if sorted(np.subtract(n, other)) == [-1, 0, 1]
]
"""Pairs of histograms, in both orders, that differ by one vote moved from one class to another."""
EXPECTED = (0.55, 0.3, 0.15)
"""What a student expects: no multiple of a vote."""
NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def winner(n: tuple[int, ...], distribution: Any, scale: float) -> list[float]:
    """P(class j has the most votes after noise): Gauss-Legendre quadrature over the noise of j's own count, between the
    places where a Laplace distribution has a kink."""

    def chance(j: int) -> float:
        kinks = sorted({0.0, *(float(n[k] - n[j]) for k in range(CLASSES))})
        steps = scale * np.array([0.5, 1, 2, 4, 8, 16, 32])
        edges = np.unique([*kinks, *(kinks[0] - steps), *(kinks[-1] + steps)])
        half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
        z = (middle[:, None] + half[:, None] * NODES).ravel()
        below = [distribution.cdf((z + n[j] - n[k]) / scale) for k in range(CLASSES) if k != j]
        density = distribution.pdf(z / scale) / scale * np.prod(below, axis=0)
        return float(density @ (half[:, None] * WEIGHTS).ravel())

    return [chance(j) for j in range(CLASSES)]


def outcomes(aggregator: Aggregator, n: tuple[int, ...]) -> Any:
    """The distribution of what one query releases: (O,)."""
    if isinstance(aggregator, LnMaxAggregator):
        return np.array([*winner(n, stats.laplace, aggregator.scale), 0.0])
    answered = np.array(winner(n, stats.norm, aggregator.sigma))
    if isinstance(aggregator, GnMaxAggregator):
        return np.append(answered, 0.0)
    threshold, largest = aggregator.threshold, float(max(n))
    if isinstance(aggregator, InteractiveGnMaxAggregator):
        threshold = aggregator.further
        largest = max(n[j] - TEACHERS * EXPECTED[j] for j in range(CLASSES))
    passed = float(stats.norm.sf((threshold - largest) / aggregator.check_sigma))
    return np.append(passed * answered, 1 - passed)


AUDITED = [
    LnMaxAggregator(1.0),
    LnMaxAggregator(4.0),
    GnMaxAggregator(0.7),
    GnMaxAggregator(3.0),
    ConfidentGnMaxAggregator(2.0, 3.5, 1.5),
    ConfidentGnMaxAggregator(6.0, 4.0, 0.8),
    InteractiveGnMaxAggregator(2.0, 3.5, 1.5, 1.2, 0.5),
    InteractiveGnMaxAggregator(0.9, 3.0, 4.0, 0.4, 0.5),
]
NAMES = [f"{type(a).__name__}-{number}" for number, a in enumerate(AUDITED)]
DISTRIBUTIONS: dict[Aggregator, Any] = {}


def distributions(aggregator: Aggregator) -> Any:
    """(H, O)."""
    if aggregator not in DISTRIBUTIONS:
        DISTRIBUTIONS[aggregator] = np.array([outcomes(aggregator, n) for n in HISTOGRAMS])
    return DISTRIBUTIONS[aggregator]


def claimed(aggregator: Aggregator, queries: int, delta: float) -> float:
    """The ε of the product's accountant: each query checked, if there is a check, and answered."""
    check = () if aggregator.check is None else (Charge(aggregator.check, queries),)
    charges = (*check, Charge(aggregator.answer, queries))
    return accountants.epsilon(charges, delta, Neighbouring.REPLACE_ONE, "pld")


def beyond(p: Any, q: Any, epsilon: float) -> Any:
    """δ(ε) of p against q, over the last axis."""
    return np.maximum(p - math.exp(epsilon) * q, 0.0).sum(axis=-1)


@pytest.mark.parametrize("aggregator", AUDITED, ids=NAMES)
def test_the_distribution_is_a_distribution(aggregator: Aggregator) -> None:
    assert len(HISTOGRAMS) == 21
    assert len(MOVES) == 90
    assert np.abs(distributions(aggregator).sum(axis=1) - 1).max() < 1e-9


@pytest.mark.parametrize("aggregator", AUDITED, ids=NAMES)
@pytest.mark.parametrize("delta", [0.2, 1e-2, 1e-5])
def test_no_moved_vote_exceeds_the_claim(aggregator: Aggregator, delta: float) -> None:
    table, epsilon = distributions(aggregator), claimed(aggregator, 1, delta)
    actual = [beyond(table[i], table[j], epsilon) for i, j in MOVES]
    assert max(actual) <= delta + 1e-9


@pytest.mark.parametrize("aggregator", AUDITED, ids=NAMES)
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_no_moved_votes_on_two_queries_exceed_the_claim(aggregator: Aggregator, delta: float) -> None:
    # One teacher may move another vote on each query, or none: all pairs of moves, at once.
    table, epsilon = distributions(aggregator), claimed(aggregator, 2, delta)
    moves = [*MOVES, *((i, i) for i in range(0, len(HISTOGRAMS), 4))]
    p, q = (np.array([table[move[side]] for move in moves]) for side in (0, 1))
    both_p, both_q = (np.einsum("ao,bu->abou", x, x).reshape(len(moves), len(moves), -1) for x in (p, q))
    assert beyond(both_p, both_q, epsilon).max() <= delta + 1e-9


@pytest.mark.parametrize("aggregator", AUDITED, ids=NAMES)
def test_no_move_made_on_four_queries_exceeds_the_claim(aggregator: Aggregator) -> None:
    table, delta = distributions(aggregator), 1e-3
    epsilon = claimed(aggregator, 4, delta)
    for i, j in MOVES:
        p, q = table[i], table[j]
        for _ in range(3):
            p, q = np.outer(p, table[i]).ravel(), np.outer(q, table[j]).ravel()
        assert beyond(p, q, epsilon) <= delta + 1e-9


def test_the_audit_would_notice() -> None:
    # What the same outcomes would cost with two votes moved, or with half the noise that is claimed.
    claim = claimed(GnMaxAggregator(3.0), 1, 1e-2)
    quieter = np.array([outcomes(GnMaxAggregator(0.7), n) for n in HISTOGRAMS])
    assert max(beyond(quieter[i], quieter[j], claim) for i, j in MOVES) > 1e-2
    check = ConfidentGnMaxAggregator(6.0, 4.0, 0.8)
    claim = accountants.epsilon((Charge(check.answer, 1),), 1e-2, Neighbouring.REPLACE_ONE, "pld")  # no check paid
    table = distributions(check)
    assert max(beyond(table[i], table[j], claim) for i, j in MOVES) > 1e-2


DRAWS = 40_000


@pytest.mark.parametrize("aggregator", AUDITED, ids=NAMES)
@pytest.mark.parametrize("n", [(5, 0, 0), (2, 2, 1), (1, 3, 1)])
def test_what_is_audited_is_what_runs(aggregator: Aggregator, n: tuple[int, ...], tmp_path: Path) -> None:
    """The product's own ballot, put the same votes again and again. Fails by chance once in 10^7 runs of each case."""
    from dprecipe.mechanisms.pate.train.answers import AnswersFile
    from dprecipe.mechanisms.pate.train.ballot import Ballot, noise_streams

    class Paid:
        """A ledger that is never asked: what is paid is tested elsewhere."""

        def holds(self, wanted: Any) -> bool:
            return True

        def reserve(self, event: Any, count: int) -> str:
            return "sha256:"

        def settle(self, event: Any, count: int) -> None: ...

    answers = AnswersFile(tmp_path / "answers.jsonl", None, DRAWS, CLASSES)
    counts = np.tile(np.array(n, np.int32), (DRAWS, 1))
    ballot = Ballot(counts, aggregator, DRAWS, Paid(), noise_streams(Secrets()), answers)  # type: ignore[arg-type]
    scores = np.tile(EXPECTED, (DRAWS, 1)) if isinstance(aggregator, InteractiveGnMaxAggregator) else None
    ballot.put(range(DRAWS), scores)
    outcome = np.where(ballot.answered_queries, ballot.outcomes, CLASSES)
    seen = np.bincount(outcome, minlength=CLASSES + 1)
    distribution = distributions(aggregator)[HISTOGRAMS.index(n)]
    kept = distribution * DRAWS >= 5  # rare outcomes together, and not at all where they hardly can be
    expected = np.append(distribution[kept], distribution[~kept].sum()) * DRAWS
    actual = np.append(seen[kept], seen[~kept].sum())
    large = expected >= 0.5
    assert actual[~large].sum() <= 12
    statistic = ((actual[large] - expected[large]) ** 2 / expected[large]).sum()
    assert stats.chi2.sf(statistic, max(1, large.sum() - 1)) > 1e-7


def test_the_noise_of_an_event_has_its_scale() -> None:
    # A sample's mean magnitude: σ sqrt(2/π) and b, to 6 standard errors.
    for event, mean, spread in (
        (GnMaxAggregator(3.0).answer, 3 * math.sqrt(2 / math.pi), 3 * math.sqrt(1 - 2 / math.pi)),
        (ConfidentGnMaxAggregator(6.0, 4.0, 0.8).check, 0.8 * math.sqrt(2 / math.pi), 0.8 * math.sqrt(1 - 2 / math.pi)),
        (LnMaxAggregator(4.0).answer, 4.0, 4.0),
    ):
        drawn = noise(event, Secrets().stream("noise", 1), 100_000)
        assert drawn.dtype == np.float64
        assert abs(np.abs(drawn).mean() - mean) < 6 * spread / math.sqrt(100_000)
