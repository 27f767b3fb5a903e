"""Choices from public constants: golden figures, every candidate, and the limit that no bands exceed."""

from __future__ import annotations

import math

import pytest

from dprecipe.privacy import calibrate
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.correlation.choice import BANDS, POWERS, PREVIOUS, choose_bands, choose_power, choose_previous
from dprecipe.privacy.correlation.series import LinearDescent, rms_error
from dprecipe.privacy.correlation.strategies import Banded, PreviousStep, make_bands
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian
from tests.privacy.correlation.families import of

ADD = Neighbouring.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize(
    ("batches", "passes", "previous", "gain"), [(58, 10, 0.93, 3.975), (58, 20, 0.95, 4.58), (1, 1, 0.0, 1.0)]
)
def test_the_share_that_is_taken_back(batches: int, passes: int, previous: float, gain: float) -> None:
    """Against independent noise in the same order, at the same ε."""
    chosen, steps = choose_previous(batches, passes), batches * passes
    assert chosen == PreviousStep(previous)
    noises = [
        PreviousStep(each).sensitivity(batches, passes) * rms_error(PreviousStep(each), steps) for each in PREVIOUS
    ]
    best = chosen.sensitivity(batches, passes) * rms_error(chosen, steps)
    assert best == pytest.approx(min(noises), rel=1e-12)
    assert noises[0] / best == pytest.approx(gain, abs=5e-3)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_power_bands_rms"))
def test_the_power_of_bands(inputs: dict, value: float, tolerance: float) -> None:
    descent = LinearDescent(inputs["beta"])
    power = choose_power(inputs["bands"], inputs["n"], descent)
    assert power == inputs["power"]
    strategy = make_bands(inputs["bands"], power)
    assert strategy.norm * rms_error(strategy, inputs["n"], descent) == pytest.approx(value, rel=tolerance)
    for other in POWERS[::4]:
        worse = make_bands(inputs["bands"], other)
        assert worse.norm * rms_error(worse, inputs["n"], descent) >= value * (1 - tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_best_banded_rms", "corr_jax_best_banded_rms"))
def test_bands_of_a_power_are_close_to_the_best_of_all(inputs: dict, value: float, tolerance: float) -> None:
    descent = LinearDescent(inputs.get("beta", 0.0))
    strategy = make_bands(inputs["bands"], choose_power(inputs["bands"], inputs["n"], descent))
    found = strategy.norm * rms_error(strategy, inputs["n"], descent)
    assert value * (1 - tolerance) <= found <= value * 1.003


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_banded_lower_bound"))
def test_no_bands_save_more_than_a_larger_batch(inputs: dict, value: float, tolerance: float) -> None:
    bands, steps = inputs["bands"], inputs["n"]
    assert sum((t + 1) // bands for t in range(steps)) / steps == pytest.approx(value, rel=tolerance)
    for power in POWERS:
        strategy = make_bands(bands, power)
        assert (strategy.norm * rms_error(strategy, steps)) ** 2 > value


def bands_at(epsilon: float, most: int = 64, batch: int = 1024) -> Banded:
    def multiplier_of(rate: float, events: int) -> float:
        return calibrate.noise_multiplier(
            lambda sigma: [Charge(PoissonGaussian(rate, sigma), events)], epsilon, 1e-5, ADD, "rdp"
        )

    return choose_bands(batch / 60_000, 586, [each for each in BANDS if each <= most], multiplier_of)


def test_bands_pay_where_noise_is_small() -> None:
    """N = 60,000, batches of 1,024, ten passes: one band at ε = 0.5, four or more at 2, most at 8."""
    assert bands_at(0.5) == Banded((1.0,))
    few, many = bands_at(2.0), bands_at(8.0)
    assert 4 <= len(few.bands) <= len(many.bands)
    assert len(many.bands) in (16, 32)
    assert len(bands_at(8.0, most=5).bands) == 4


def test_parts_are_sampled() -> None:
    """With more than half of a part in each batch there is no amplification that would be worth parts."""
    assert bands_at(8.0, batch=15_000) in (Banded((1.0,)), make_bands(2, choose_power(2, 586)))
    assert bands_at(8.0, batch=30_001) == Banded((1.0,))


def test_a_gain_too_small_is_none() -> None:
    def multiplier_of(rate: float, events: int) -> float:
        return rate * math.sqrt(events) * (1.0 if rate <= 0.01 else gain * math.sqrt(rate / 0.01))

    plain, two = Banded((1.0,)), make_bands(2, choose_power(2, 100))
    ratio = two.norm * rms_error(two, 100) / rms_error(plain, 100)
    for share, expected in ((0.99, plain), (0.97, two)):
        # the noise of two bands is this share of that of one
        gain = share / (ratio * 2 * math.sqrt(0.5) * math.sqrt(2))
        assert choose_bands(0.01, 100, (1, 2), multiplier_of) == expected
