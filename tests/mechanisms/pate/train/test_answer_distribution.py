"""The exact distribution of an answer, against closed forms and against the room's own quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dprecipe.mechanisms.pate.aggregators import ConfidentGnMaxAggregator, InteractiveGnMaxAggregator
from dprecipe.mechanisms.pate.events import NoisyMax
from dprecipe.mechanisms.pate.theory.exact_votes import exact_gnmax_rdp
from dprecipe.mechanisms.pate.train.answer_distribution import (
    answer_distribution,
    check_distribution,
    hockey_stick,
    list_moves,
    release_distribution,
    renyi_divergences,
    small_histograms,
)


def test_two_classes_have_closed_forms() -> None:
    gaussian = answer_distribution(NoisyMax("gaussian", 3.0), (7, 4))
    assert gaussian[0] == pytest.approx(stats.norm.cdf(3 / (3 * math.sqrt(2))), abs=1e-12)
    laplace = answer_distribution(NoisyMax("laplace", 2.0), (7, 4))
    assert laplace[1] == pytest.approx((2 + 1.5) * math.exp(-1.5) / 4, abs=1e-12)  # Papernot et al. 2017, Lemma 4
    many = answer_distribution(NoisyMax("gaussian", 40.0), (200, 30, 20, *[0] * 97))
    assert many.sum() == pytest.approx(1, abs=1e-12)
    assert np.ptp(many[3:]) == 0


def test_a_check_passes_as_its_noise_does() -> None:
    aggregator = ConfidentGnMaxAggregator(2.0, 5.0, 1.5)
    assert check_distribution(aggregator, (6, 1))[0] == pytest.approx(stats.norm.sf(-1 / 1.5), rel=1e-12)
    interactive = InteractiveGnMaxAggregator(2.0, 5.0, 1.5, 2.0, 0.9)
    passed, failed = check_distribution(interactive, (6, 1), np.array([0.5, 0.5]))
    assert passed == pytest.approx(stats.norm.sf((2 - 2.5) / 1.5), rel=1e-12)
    assert passed + failed == pytest.approx(1, abs=1e-15)
    assert release_distribution(aggregator, (6, 1)).sum() == pytest.approx(1, abs=1e-12)


def test_all_votes_and_all_moves_are_there() -> None:
    histograms = small_histograms(5, 3)
    assert len(set(histograms)) == 21
    assert all(sum(counts) == 5 for counts in histograms)
    assert len(list_moves(histograms)) == 90


def test_divergences_are_those_of_the_mechanism_and_of_gaussians() -> None:
    histograms, orders = small_histograms(5, 3), (2.0, 8.0)
    distributions = [answer_distribution(NoisyMax("gaussian", 1.5), counts) for counts in histograms]
    largest = np.zeros((len(histograms), 2))
    for one, other in list_moves(histograms):
        divergence = renyi_divergences(distributions[one], distributions[other], orders)
        largest[one] = np.maximum(largest[one], divergence)
    assert largest == pytest.approx(exact_gnmax_rdp(histograms, 1.5, orders), rel=1e-8)
    assert renyi_divergences(np.array([0.5, 0.5]), np.array([1.0, 0.0]), orders).tolist() == [math.inf, math.inf]
    assert hockey_stick(np.array([0.75, 0.25]), np.array([0.25, 0.75]), math.log(3)) == pytest.approx(0, abs=1e-15)
