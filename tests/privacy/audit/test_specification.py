"""The test of the specification: its p-value by another computation, its false alarms, and what it does not bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from dprecipe.privacy import gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.results import MAX_DIFFERENCE, Scores
from dprecipe.privacy.audit.specification import (
    chance_of_difference,
    judge_specification,
    lower_mu_of_scores,
    specified_mu,
    squared_separation,
)
from dprecipe.privacy.events import Charge
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.privacy.noisy_sums import FixedSizeGaussian, Gaussian, PoissonGaussian, PoissonLaplace

MU = gdp.mu_for(3.0, 1e-5)
CANARIES = 1000
LEVELS = (0.05, 0.005)


def of(inside: int, outside: int, difference: float) -> Scores:
    return Scores(inside=inside, outside=outside, difference=difference)


@pytest.mark.parametrize(
    ("scores", "mu"),
    [
        (of(500, 500, 0.8), 0.72),
        (of(498, 502, 1.4), 0.72),
        (of(5, 5, 1.0), 0.3),
        (of(1, 2, 2.0), 0.5),
        (of(3, 7, 100.0), 1.0),
        (of(5, 5, -3.0), 1.0),
        (of(50_000, 50_000, 0.72), 0.719),
    ],
)
def test_the_chance_is_that_of_the_non_central_t_distribution(scores: Scores, mu: float) -> None:
    root = math.sqrt(scores.inside * scores.outside / (scores.inside + scores.outside))
    degrees = scores.inside + scores.outside - 2
    expected = stats.nct.sf(scores.difference * root, degrees, mu * root)
    assert chance_of_difference(scores, mu) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("level", LEVELS)
def test_the_lower_mu_is_where_the_chance_is_the_level(level: float) -> None:
    lower = lower_mu_of_scores(of(480, 520, 0.8), 1 - level)
    assert chance_of_difference(of(480, 520, 0.8), lower) == pytest.approx(level, rel=1e-6)
    assert lower_mu_of_scores(of(480, 520, 0.02), 1 - level) == 0


def test_extremes() -> None:
    for nothing in (of(0, 10, 0.0), of(10, 0, 0.0), of(1, 1, 9.0)):
        assert chance_of_difference(nothing, 0.1) == 1
        assert judge_specification(nothing, 0.1, 0.95).consistent
    without_noise = judge_specification(of(500, 500, MAX_DIFFERENCE), MU, 0.95)
    assert (without_noise.consistent, without_noise.p_value) == (False, 1e-300)
    assert without_noise.lower_mu > 0.9 * MAX_DIFFERENCE


def test_what_is_specified_is_the_separation_of_full_batches() -> None:
    add, replace = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
    charges = [Charge(Gaussian(4.0), 12), Charge(PoissonGaussian(1.0, 2.0), 1)]
    assert specified_mu(charges, add) == pytest.approx(1.0)
    assert specified_mu(charges, replace) == pytest.approx(2.0)
    for other in (
        PoissonGaussian(0.5, 4.0),
        FixedSizeGaussian(100, 10, 4.0),
        PoissonLaplace(1.0, 4.0),
        GroupedGaussian.of(1.0, [4.0, 4.0]),
    ):
        assert squared_separation(other, add) is None
        assert specified_mu([*charges, Charge(other, 5)], add) == pytest.approx(1.0)


def simulate(program: str, runs: int, seed: int) -> list[Scores]:
    """Returns what is seen of runs in which each canary's score is N(±μ/2, 1): independent, or with one level."""
    rng, seen = np.random.default_rng(seed), []
    for _ in range(runs):
        inside = rng.random(CANARIES) < 0.5
        if program == "ideal":
            scores = np.where(inside, MU / 2, -MU / 2) + rng.standard_normal(CANARIES)
        else:
            level = abs(MU / 2 + rng.standard_normal())
            told = rng.random(CANARIES) < special.expit(MU * level)
            scores = np.where(inside == told, level, -level)
        seen.append(summarise(scores, inside))
    return seen


def summarise(scores: NDArray[np.float64], inside: NDArray[np.bool_]) -> Scores:
    test = stats.ttest_ind(scores[inside], scores[~inside])
    n_in, n_out = int(inside.sum()), int((~inside).sum())
    return of(n_in, n_out, float(test.statistic) * math.sqrt(1 / n_in + 1 / n_out))


RUNS = 2000


@pytest.fixture(scope="module")
def ideal() -> list[Scores]:
    return simulate("ideal", RUNS, 21)


def count_alarms(seen: list[Scores], level: float) -> int:
    return sum(chance_of_difference(scores, MU) < level for scores in seen)


@pytest.mark.parametrize("level", LEVELS)
def test_the_specified_program_raises_alarms_at_the_level(ideal: list[Scores], level: float) -> None:
    """Exactly at the level: of 2,000 runs, fewer or more than these with a probability below 0.1 % on either side."""
    low, high = stats.binom.ppf([1e-3, 1 - 1e-3], RUNS, level)
    assert low <= count_alarms(ideal, level) <= high


@pytest.mark.parametrize(("level", "known"), [(0.05, 2.47), (0.005, 2.20)])
def test_the_median_run_at_epsilon_3(ideal: list[Scores], level: float, known: float) -> None:
    """The ε of a Gaussian pair that 1,000 canaries agree with. The known values are medians of 500 simulated runs,
    with a standard error of 0.017; that of these 1,000 is 0.012."""
    values = [gdp.epsilon(lower_mu_of_scores(scores, 1 - level), 1e-5) for scores in ideal[::2]]
    assert np.median(values) == pytest.approx(known, abs=0.05)


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_that_keeps_to_its_claim_raises_alarms(level: float) -> None:
    """All canaries are answered with one common level, and each keeps to the claimed curve: so an alarm bounds no ε. A
    quarter of the runs raise one, at either level."""
    alarms = count_alarms(simulate("shared", 400, 22), level)
    assert 0.18 * 400 < alarms < 0.36 * 400
