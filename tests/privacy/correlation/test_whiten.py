"""Whitening undoes correlation, whatever the strategy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dprecipe.privacy.correlation.series import column_of, inverse_of
from dprecipe.privacy.correlation.strategies import PreviousStep, Strategy, make_bands
from dprecipe.privacy.correlation.whiten import Whitener

STRATEGIES = [PreviousStep(0.9), PreviousStep(0.0), make_bands(1, 1.0), make_bands(4, 0.82), make_bands(12, 0.5)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_noise_is_whitened_to_its_draws(strategy: Strategy) -> None:
    """Against the product with the whole matrix, row by row."""
    steps = 20
    draws_TP = np.random.default_rng(0).normal(size=(steps, 3))
    inverse = inverse_of(strategy, steps)
    noise_TP = np.stack([inverse[: t + 1][::-1] @ draws_TP[: t + 1] for t in range(steps)])
    whitener: Whitener[NDArray[np.float64]] = Whitener(strategy)
    assert np.allclose([whitener.take(noise) for noise in noise_TP], draws_TP, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_sum_in_one_step_shows_in_later_ones_as_the_column_says(strategy: Strategy) -> None:
    whitener: Whitener[NDArray[np.float64]] = Whitener(strategy)
    seen = [whitener.take(np.array([1.0 if t == 3 else 0.0])) for t in range(15)]
    assert np.allclose(np.concatenate(seen), [0.0] * 3 + list(column_of(strategy, 12)), rtol=0, atol=1e-12)


def test_vectors_may_change_after_they_were_taken() -> None:
    whitener: Whitener[NDArray[np.float64]] = Whitener(make_bands(2, 1.0))
    vector = np.ones(2)
    first = whitener.take(vector)
    vector *= 100.0
    assert first.tolist() == [1.0, 1.0]
    assert whitener.take(np.zeros(2)).tolist() == [1.0, 1.0]
