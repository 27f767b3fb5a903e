"""Columns, inverses and the noise left in the iterates: golden figures and dense matrices."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from dprecipe.privacy.correlation.choice import choose_power
from dprecipe.privacy.correlation.sensitivity import ordered_sensitivity
from dprecipe.privacy.correlation.series import (
    EXACT,
    LinearDescent,
    column_of,
    divide_series,
    inverse_of,
    last_deviation,
    rms_error,
    squared_errors,
)
from dprecipe.privacy.correlation.strategies import Banded, PreviousStep, Strategy, make_bands
from tests.privacy.correlation.families import dense, iterates, make_family, of, power_series, square_root

STRATEGIES = [PreviousStep(0.0), PreviousStep(0.93), PreviousStep(1.0), Banded((1.0,)), make_bands(4, 0.82)]
DESCENTS = [LinearDescent(), LinearDescent(0.9), LinearDescent(0.9, 0.999), LinearDescent(0.0, 0.98)]


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_bsr_coefficients"))
def test_square_root_bands(inputs: dict, value: list[float], tolerance: float) -> None:
    assert square_root(-0.5, inputs["beta"], inputs["bands"]) == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_bisr_inverse_coefficients"))
def test_square_root_taps(inputs: dict, value: list[float], tolerance: float) -> None:
    assert square_root(0.5, inputs["beta"], inputs["taps"]) == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(
    ("inputs", "value", "tolerance"), of("corr_bisr_strategy_coefficients", "corr_bifr_strategy_coefficients")
)
def test_columns_of_given_taps(inputs: dict, value: list[float], tolerance: float) -> None:
    power = inputs.get("gamma")
    taps = power_series(power, 1.0, inputs["taps"]) if power else square_root(0.5, inputs["beta"], inputs["taps"])
    assert divide_series((1.0,), taps, inputs["n"]) == pytest.approx(value, rel=tolerance)


def test_taps_of_two_are_the_step_before() -> None:
    assert divide_series((1.0,), square_root(0.5, 0.0, 2), 9) == pytest.approx(column_of(PreviousStep(0.5), 9))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("steps", [1, 2, 3, 40])
def test_inverses_are_inverse(strategy: Strategy, steps: int) -> None:
    column, inverse = column_of(strategy, steps), inverse_of(strategy, steps)
    assert column.shape == inverse.shape == (steps,)
    assert dense(column) @ dense(inverse) == pytest.approx(np.eye(steps), abs=1e-12)
    assert inverse[: len(strategy.taps)] == pytest.approx(strategy.taps[:steps]) or len(strategy.bands) > 1


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_noise_banded", "corr_noise_inverse_banded"))
def test_rows_of_noise(inputs: dict, value: list[float], tolerance: float) -> None:
    z_T = np.sin(np.arange(1, 13) ** 2.0)
    column = np.array(inputs.get("c", [1.0]))
    inverse = divide_series(np.array(inputs.get("d", [1.0])) / column[0], column / column[0], len(z_T))
    assert dense(inverse) @ z_T == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_jax_noise", "corr_jax_noise_column_normalised"))
def test_rows_of_noise_of_another_library(inputs: dict, value: list[float], tolerance: float) -> None:
    """The last columns of a normalised matrix are shorter, so the noise of the last steps differs there."""
    z_T, column = np.sin(np.arange(1, 13) ** 2.0), np.array(inputs["c"])
    alike = len(z_T) if column[0] == 1 else len(z_T) - len(column) + 1
    inverse = divide_series(1 / column[0], column / column[0], len(z_T))
    assert (dense(inverse) @ z_T)[:alike] == pytest.approx(value[:alike], rel=tolerance)


def errors_of(inputs: dict) -> NDArray:
    column, inverse = make_family(inputs["family"], inputs["n"])
    descent = LinearDescent(inputs["beta"], inputs.get("weight_decay_factor", 1.0))
    short = np.count_nonzero(inverse) < np.count_nonzero(column)
    return (
        squared_errors((1.0,), inverse, inputs["n"], descent)
        if short
        else squared_errors(column, (1.0,), inputs["n"], descent)
    )


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_error", "corr_jax_error"))
def test_noise_of_iterates(inputs: dict, value: list[float], tolerance: float) -> None:
    errors_T = errors_of(inputs)
    assert [errors_T.mean(), errors_T.max()] == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("descent", DESCENTS, ids=str)
def test_noise_of_iterates_by_dense_matrices(strategy: Strategy, descent: LinearDescent) -> None:
    steps = 37
    rows = iterates(steps, descent.momentum, descent.decay) @ dense(inverse_of(strategy, steps))
    exact_T = (rows**2).sum(axis=1)
    assert squared_errors(strategy.bands, strategy.taps, steps, descent) == pytest.approx(exact_T, rel=1e-10)
    assert rms_error(strategy, steps, descent) == pytest.approx(math.sqrt(exact_T.mean()), rel=1e-10)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_error_cosine"))
def test_a_learning_rate_that_falls_leaves_less_noise(inputs: dict, value: list[float], tolerance: float) -> None:
    steps, (_, inverse) = inputs["n"], make_family(inputs["family"], inputs["n"])
    rates = (1 + np.cos(np.pi * np.arange(steps) / steps)) / 2
    falling_T = ((iterates(steps, inputs["beta"], 1.0, rates) @ dense(inverse)) ** 2).sum(axis=1)
    assert [falling_T.mean(), falling_T.max()] == pytest.approx(value, rel=tolerance)
    assert falling_T.mean() < errors_of(inputs).mean()


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_best_lambda"))
def test_noise_of_the_best_share(inputs: dict, value: float, tolerance: float) -> None:
    strategy = PreviousStep(inputs["lam"])
    error = rms_error(strategy, inputs["n"], LinearDescent(inputs["beta"]))
    assert strategy.sensitivity(inputs["min_sep"], inputs["k"]) * error == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_power_inverse_rms"))
def test_noise_of_powers_of_the_inverse(inputs: dict, value: float, tolerance: float) -> None:
    steps, taps = inputs["n"], power_series(inputs["power"], 1.0, inputs["taps"])
    errors_T = squared_errors((1.0,), taps, steps, LinearDescent(inputs["beta"]))
    moved = ordered_sensitivity(divide_series((1.0,), taps, steps), inputs["cycle"], [(0, steps)])
    assert moved * math.sqrt(errors_T.mean()) == pytest.approx(value, rel=tolerance)


def test_many_strategies_at_once_are_each_by_itself() -> None:
    candidates = [make_bands(3, power) for power in (0.2, 0.7, 1.0)]
    together = squared_errors(np.array([each.bands for each in candidates]), (1.0,), 20, LinearDescent(0.5))
    for strategy, errors_T in zip(candidates, together, strict=True):
        assert errors_T == pytest.approx(squared_errors(strategy.bands, (1.0,), 20, LinearDescent(0.5)))


@pytest.mark.parametrize(("bands", "power"), [(1, 1.0), (2, 0.8), (8, 0.94), (32, 0.98), (16, 1.0), (64, 0.2)])
def test_long_runs_are_continued_as_they_repeat(bands: int, power: float) -> None:
    """Bands of equal coefficients repeat themselves after as many steps; others are constant long before."""
    strategy, steps = make_bands(bands, power), 2 * EXACT + 1000
    exact = squared_errors(strategy.bands, strategy.taps, steps).mean()
    assert rms_error(strategy, steps) ** 2 == pytest.approx(exact, rel=1e-3)
    assert last_deviation(strategy, steps) == pytest.approx(np.linalg.norm(inverse_of(strategy, steps)), rel=1e-3)


def test_a_run_of_millions_of_steps_is_planned_at_once() -> None:
    """`verify` plans it again, within a limit of processor time: without, the run would end without a release."""
    start = time.process_time()
    power = choose_power(32, 10_000_000)
    assert 0.9 < power <= 1
    assert rms_error(make_bands(32, power), 10_000_000) > 0
    assert time.process_time() - start < 10
