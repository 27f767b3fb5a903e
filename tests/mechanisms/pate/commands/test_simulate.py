"""Simulated votes: who votes for what, and how often the plurality answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from dprecipe.mechanisms.pate.commands.simulate import Agreement, plurality_chance, simulate_counts
from dprecipe.mechanisms.pate.theory.votes import Voting


def test_every_teacher_votes_and_the_seed_decides() -> None:
    votes_QM = simulate_counts(250, 10, 300, Agreement(), 3)
    assert votes_QM.shape == (300, 10)
    assert votes_QM.min() >= 0
    assert np.all(votes_QM.sum(axis=1) == 250)
    assert np.array_equal(votes_QM, simulate_counts(250, 10, 300, Agreement(), 3))
    assert not np.array_equal(votes_QM, simulate_counts(250, 10, 300, Agreement(), 4))


def test_as_many_agree_as_is_said_on_any_class() -> None:
    """Six standard deviations each: fails once in 10⁷ seeds."""
    queries, teachers = 4000, 500
    fixed_QM = simulate_counts(teachers, 5, queries, Agreement(0.8, 0.8), 0)
    share = float(fixed_QM.max(axis=1).mean()) / teachers
    assert share == pytest.approx(0.8, abs=6 * math.sqrt(0.16 / (queries * teachers)))
    favoured_M = np.bincount(fixed_QM.argmax(axis=1), minlength=5)
    assert np.all(np.abs(favoured_M - queries / 5) < 6 * math.sqrt(queries * 0.16))
    spread_QM = simulate_counts(teachers, 5, queries, Agreement(0.6, 1.0), 0)
    shares_Q = spread_QM.max(axis=1) / teachers
    assert float(shares_Q.mean()) == pytest.approx(0.8, abs=6 * 0.4 / math.sqrt(12 * queries) + 1e-3)
    assert float(shares_Q.std()) == pytest.approx(0.4 / math.sqrt(12), rel=0.1)


def test_dissenters_flock_to_few_classes() -> None:
    """As votes drawn one by one, class top + 1 + floor((m-1) u³): all differences within six standard deviations."""
    queries, teachers, classes = 500, 400, 6
    votes_QM = simulate_counts(teachers, classes, queries, Agreement(0.7, 0.7), 1)
    top_Q1 = votes_QM.argmax(axis=1)[:, None]
    places_QM = np.take_along_axis(votes_QM, (top_Q1 + np.arange(classes)) % classes, axis=1)
    random = np.random.default_rng(2)
    one_by_one = np.bincount(np.floor((classes - 1) * random.random(60_000) ** 3).astype(int)) / 60_000
    actual = places_QM[:, 1:].sum(axis=0) / places_QM[:, 1:].sum()
    assert actual == pytest.approx(one_by_one, abs=6 * math.sqrt(0.25 / 60_000 + 0.25 / 60_000))
    assert np.all(np.diff(actual) < 0)


def test_how_often_the_plurality_answers_gaussian() -> None:
    voting = Voting(60, 4, "gaussian", 10.0)
    votes_QM = np.array([[40, 10, 5, 5], [16, 15, 15, 14], [20, 20, 10, 10], [0, 0, 60, 0]])
    x = np.linspace(-100.0, 160.0, 5001)
    exact = [
        integrate.trapezoid(stats.norm.pdf(x, most, 10.0) * stats.norm.cdf(x[:, None], others, 10.0).prod(axis=1), x)
        for *others, most in np.sort(votes_QM)
    ]
    assert plurality_chance(votes_QM, voting) == pytest.approx(exact, abs=5e-4)


def test_how_often_the_plurality_answers_laplace() -> None:
    """Of two classes by the distribution of a difference of two Laplace variables: (2 + gap/b) exp(-gap/b) / 4 is
    overtaken."""
    gaps = np.array([0, 2, 10, 30])
    votes_QM = np.stack([(30 + gaps) // 2, (30 - gaps) // 2], axis=1)
    expected = 1 - (2 + gaps / 5) * np.exp(-gaps / 5) / 4
    assert plurality_chance(votes_QM, Voting(30, 2, "laplace", 5.0)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("shares", [(0.9, 0.5), (-0.1, 1.0), (0.5, 1.1), (math.nan, 1.0)])
def test_shares_out_of_range(shares: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="expected 0 <= low <= high <= 1"):
        Agreement(*shares)
