"""How often a batch is full, against the binomial distribution."""

from __future__ import annotations

import pytest
from scipy import stats

from dprecipe.privacy import noisy_sums as full_batches


@pytest.mark.parametrize(
    ("size", "rate", "cap"),
    [(60_000, 256 / 60_000, 320), (60_000, 256 / 60_000, 384), (50, 0.1, 6), (50, 0.1, 49), (10**9, 1e-6, 1200)],
)
def test_a_bound_close_above_the_binomial_tail(size: int, rate: float, cap: int) -> None:
    exact = float(stats.binom.sf(cap - 1, size, rate))
    bound = full_batches.full_batch_probability(size, rate, cap)
    assert exact * (1 - 1e-9) <= bound <= exact * (1 + 1 / (11 * min(cap, size - cap)))


def test_its_ends() -> None:
    assert full_batches.full_batch_probability(10, 0.5, 10) == 0.5**10
    assert full_batches.full_batch_probability(10, 0.5, 11) == 0.0
    assert full_batches.full_batch_probability(10, 0.5, 5) == 1.0  # no more than the mean: nothing is claimed
