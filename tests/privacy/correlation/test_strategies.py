"""Strategies: golden figures, independent arithmetic, and what is refused."""

from __future__ import annotations

import math
import random

import mpmath
import numpy as np
import pytest

from dprecipe.privacy.correlation.recheck import compute_pass_energy
from dprecipe.privacy.correlation.strategies import MAX_BANDS, Banded, PreviousStep, make_bands
from tests.privacy.correlation.families import of


def draw_passes(count: int) -> list[tuple[float, int, int]]:
    rng = random.Random(39)
    drawn = [
        (rng.choice([rng.random(), 1 - 10 ** rng.uniform(-16, 0), 10 ** rng.uniform(-300, 0)]), batches, number)
        for _ in range(count)
        for batches, number in [(int(10 ** rng.uniform(0, 15)), int(10 ** rng.uniform(0, 15)) - 1)]
    ]
    return [*drawn, (1.0, 10**15, 10**15), (1.0, 1, 0), (1 - 2**-53, 7, 3), (5e-324, 10**15, 5), (0.0, 3, 4)]


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_cycle_energy_closed"))
def test_energies_of_passes(inputs: dict, value: list[float], tolerance: float) -> None:
    strategy = PreviousStep(inputs["lam"])
    found = [strategy.pass_energy(inputs["batches"], number) for number in range(len(value))]
    assert found == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_lambda_column_norm_closed"))
def test_the_first_pass_costs_the_norm_of_a_column(inputs: dict, value: float, tolerance: float) -> None:
    assert PreviousStep(inputs["lam"]).sensitivity(inputs["n"], 1) == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_lambda_sensitivity_closed"))
def test_sensitivity_of_all_passes(inputs: dict, value: float, tolerance: float) -> None:
    found = PreviousStep(inputs["lam"]).sensitivity(inputs["min_sep"], inputs["k"])
    assert found == pytest.approx(value, rel=tolerance)


def test_an_energy_is_never_below_the_exact_one() -> None:
    for previous, batches, number in draw_passes(300):
        found = PreviousStep(previous).pass_energy(batches, number)
        with mpmath.workdps(60):
            x = mpmath.mpf(previous)
            if previous == 1:
                exact = mpmath.mpf(batches) * (number + 1) ** 2
            else:
                power = x**batches
                exact = (1 - power**2) / (1 - x**2) * ((1 - power ** (number + 1)) / (1 - power)) ** 2
            case = f"{previous} {batches} {number}"
            assert exact <= mpmath.mpf(found) * (1 + mpmath.mpf(2) ** -52), case
            assert found <= exact * (1 + mpmath.mpf(2e-14)), case
            assert compute_pass_energy(previous, batches, number) == pytest.approx(float(exact), rel=1e-13), case


def test_the_second_computation_is_the_sum_itself() -> None:
    for batches, number in ((1, 0), (2, 3), (5, 1), (12, 6)):
        column = 0.83 ** np.arange(batches * (number + 1))
        summed = float((column.reshape(number + 1, batches).sum(axis=0) ** 2).sum())
        assert compute_pass_energy(0.83, batches, number) == pytest.approx(summed, rel=1e-14)


def test_energies_rise_with_what_is_kept_and_with_the_passes() -> None:
    grid = [i / 50 for i in range(51)]
    for batches, number in ((1, 3), (7, 0), (58, 2)):
        energies = [PreviousStep(previous).pass_energy(batches, number) for previous in grid]
        assert energies == sorted(energies)
        assert len(set(energies)) > 10
    for previous in (0.3, 0.97, 1.0):
        strategy = PreviousStep(previous)
        in_turn = [strategy.pass_energy(5, number) for number in range(6)]
        assert in_turn == sorted(in_turn)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_event_banded_effective_multiplier"))
def test_norms_of_bands(inputs: dict, value: float, tolerance: float) -> None:
    norm = Banded(tuple(inputs["coefficients"])).norm
    assert value * (1 - tolerance) <= inputs["noise_multiplier"] / norm <= value
    exact = sum(mpmath.mpf(c) ** 2 for c in inputs["coefficients"])
    assert mpmath.mpf(norm) ** 2 >= exact


def test_one_band_has_norm_one_to_the_last_digit() -> None:
    assert Banded((1.0,)).norm == 1.0
    assert Banded((1.0, 0.0, 0.0)).norm == 1.0
    assert Banded((1.0, 1e-9)).norm > 1.0


def test_bands_are_the_coefficients_of_a_power() -> None:
    assert make_bands(4, 0.82).bands == pytest.approx((1.0, 0.82, 0.7462, 0.701428), rel=1e-12)
    assert make_bands(5, 0.5).bands == pytest.approx((1.0, 0.5, 0.375, 0.3125, 0.2734375), rel=1e-15)
    assert make_bands(3, 1.0).bands == (1.0, 1.0, 1.0)
    for power in (1e-9, 0.2, 0.999999, 1.0):
        assert len(make_bands(MAX_BANDS, power).bands) == MAX_BANDS  # they never increase: the constructor checks


@pytest.mark.parametrize("previous", [-0.1, 1.0000001, math.nan, math.inf])
def test_shares_beyond_the_whole_are_refused(previous: float) -> None:
    with pytest.raises(ValueError, match="expected 0 <= previous <= 1"):
        PreviousStep(previous)


@pytest.mark.parametrize(("batches", "number"), [(0, 0), (3, -1)])
def test_impossible_passes_are_refused(batches: int, number: int) -> None:
    with pytest.raises(ValueError, match="expected a finite"):
        PreviousStep(0.5).pass_energy(batches, number)


@pytest.mark.parametrize(
    "bands",
    [(), (0.5,), (1.0, -0.1), (1.0, 0.5, 0.6), (1.0, 1.1), (1.0, math.nan), (math.nan,), (1.0,) * (MAX_BANDS + 1)],
)
def test_coefficients_that_no_theorem_covers_are_refused(bands: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Banded(bands)


@pytest.mark.parametrize(("bands", "power"), [(0, 0.5), (65, 0.5), (4, 0.0), (4, 1.01), (4, math.nan)])
def test_powers_out_of_range_are_refused(bands: int, power: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        make_bands(bands, power)
