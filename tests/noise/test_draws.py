"""Draws against their law, on a fixed key: each bound is passed by chance with the probability given."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dprecipe.noise.draws import BLOCK, gaussian
from dprecipe.noise.entropy import Stream

COUNT = 400_001


@pytest.fixture(scope="module")
def draws() -> np.ndarray:
    return gaussian(Stream(b"draws for the tests of gaussian!"), COUNT)


def test_the_distribution_is_normal(draws: np.ndarray) -> None:
    """Kolmogorov–Smirnov at 2e-6."""
    cdf = ndtr(np.sort(draws))
    n = len(cdf)
    distance = max(np.max(np.arange(1, n + 1) / n - cdf), np.max(cdf - np.arange(n) / n))
    assert distance < math.sqrt(math.log(2 / 2e-6) / 2 / n)


def test_variance_and_tails(draws: np.ndarray) -> None:
    """Five standard errors each: 6e-7."""
    assert abs(draws.var() - 1) < 5 * math.sqrt(2 / COUNT)
    for level in (2.0, 3.0, 4.0):
        tail = 2 * ndtr(-level)
        assert abs((np.abs(draws) > level).mean() - tail) < 5 * math.sqrt(tail / COUNT)


def test_neighbours_are_uncorrelated(draws: np.ndarray) -> None:
    """Also across the two halves that one radius makes: five standard errors."""
    for lag in (1, 2, BLOCK):
        assert abs(np.mean(draws[:-lag] * draws[lag:])) < 5 / math.sqrt(COUNT)
        assert abs(np.mean((draws[:-lag] ** 2 - 1) * (draws[lag:] ** 2 - 1))) < 5 * 2 / math.sqrt(COUNT)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_any_count(count: int) -> None:
    values = gaussian(Stream(bytes(32)), count)
    assert values.shape == (count,)
    assert np.isfinite(values).all()
    assert len(np.unique(values)) == count
