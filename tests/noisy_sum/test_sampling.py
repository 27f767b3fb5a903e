"""Schedules as staircases, and the steps of an event."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from dprecipe.mechanisms.pate.events import NoisyMax
from dprecipe.noisy_sum import sampling
from dprecipe.noisy_sum.sampling import (
    DealtSampling,
    Pace,
    PermutedSampling,
    count_steps,
    expected_batch,
    is_divisor,
    noise_multiplier,
    sampling_rate,
    shortest_number,
)
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import FixedSizeGaussian, Gaussian, PoissonGaussian


def test_a_short_schedule_has_a_stair_for_each_step() -> None:
    assert sampling.piece_starts(5, 100, 62) == {0, 1, 2, 3, 4}
    assert sampling.piece_starts(1, 100, 62) == {0}


def test_a_long_one_has_at_most_one_more_than_asked_for() -> None:
    actual = sorted(sampling.piece_starts(1000, 1000, 10))
    assert len(actual) == 11
    assert (actual[0], actual[-1]) == (0, 999)
    assert max(b - a for a, b in pairwise(actual)) <= 100


def test_a_run_that_ends_first_has_its_stairs_within() -> None:
    assert len([at for at in sampling.piece_starts(1000, 100, 10) if at < 100]) == 10


def test_pieces_cover_the_run() -> None:
    assert list(sampling.split_steps({3, 7, 12, 20}, 12)) == [(0, 3), (3, 7), (7, 12)]
    assert list(sampling.split_steps((), 4)) == [(0, 4)]


def test_a_batch_size_comes_back_from_its_rate_exactly() -> None:
    generator = np.random.default_rng(0)
    for size in (3, 1438, 60_000, 1_281_167, 10**9 + 7):
        for batch in {1, 2, size // 3, size - 1, *generator.integers(1, size, 200).tolist()} - {0}:
            assert expected_batch(PoissonGaussian(batch / size, 1.0), size) == batch, (size, batch)


def test_a_multiplier_of_six_digits_comes_back_from_its_quotient_and_product_exactly() -> None:
    generator = np.random.default_rng(1)
    for _ in range(2000):
        written = float(f"{generator.uniform(1e-3, 50):.6g}")
        by = float(generator.uniform(0.01, 20))
        over, times = written / by, written * by
        assert shortest_number(over * by, lambda m, by=by, over=over: m / by == over) == written
        assert shortest_number(times / by, lambda m, by=by, times=times: m * by == times) == written


def test_what_each_event_says() -> None:
    assert (expected_batch(Gaussian(1.0), 50), sampling_rate(Gaussian(1.0), "full_batch", 50)) == (50.0, None)
    assert expected_batch(DealtGaussian(1.0, 15), 100) == 100 / 15
    assert sampling_rate(FixedSizeGaussian(100, 7, 1.0), "fixed_size", 100) == 7 / 100
    assert sampling_rate(Gaussian(1.0), "poisson", 50) == 1.0  # every unit is sampled, at rate 1
    assert count_steps([Charge(DealtGaussian(1.0, 15), 3), Charge(Gaussian(1.0), 2)]) == 47
    assert noise_multiplier(PoissonGaussian(0.1, 1.25)) == 1.25
    with pytest.raises(TypeError, match="not a noisy sum"):
        noise_multiplier(NoisyMax("gaussian", 1.0))


def test_a_divisor_is_the_expected_batch_up_to_a_rates_rounding() -> None:
    for batch in np.linspace(31.7, 100.1, 500).tolist():
        event = PoissonGaussian(batch / 1438, 1.0)
        assert is_divisor(batch, event, 1438)
        assert not is_divisor(batch * (1 + 1e-12), event, 1438)


@pytest.mark.parametrize(("size", "batches"), [(99, 9), (100, 9), (101, 10), (109, 10), (10, 1), (5, 1)])
def test_permuted_batches_are_full_with_a_unit_less(size: int, batches: int) -> None:
    pace = Pace.of(PermutedSampling(scheme="permuted", batch_size=10), size)
    assert (pace.steps_per_event, pace.expected_batch, pace.sampling_rate) == (batches, 10.0, None)
    assert pace.passes(3) == 3
    assert pace.last_steps(float(pace.passes(3)), None) == batches  # a length that was solved is planned again as it is


def test_dealt_batches_share_all_units() -> None:
    pace = Pace.of(DealtSampling(scheme="dealt", batch_size=10), 101)
    assert (pace.steps_per_event, pace.expected_batch) == (11, 101 / 11)
    assert [pace.events_for(2.5, None), pace.events_for(None, 22), pace.events_for(None, 23)] == [3, 2, 3]
    assert [pace.last_steps(2.5, None), pace.last_steps(None, 22), pace.last_steps(None, 23)] == [6, 11, 1]


def test_a_solved_number_of_epochs_makes_the_events_that_it_was_solved_for() -> None:
    """A double may lie above the exact number of passes; as many epochs would need an event more."""
    for size, steps, batch in ((1438, 1, 7), (1438, 2, 100), (60_000, 4, 1024), (997, 16, 20)):
        pace = Pace(steps, ((0, Fraction(batch)),), size, True)
        for events in range(1, 400):
            epochs = pace.epochs_of(events)
            assert pace.events_for(epochs, None) == events
            assert epochs == pytest.approx(float(pace.passes(events)), rel=1e-15)
