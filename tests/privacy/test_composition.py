"""Composition by tilted FFT: against brute force, closed forms, and Monte Carlo."""

import math

import numpy as np
import pytest

from dprecipe.privacy import gdp, pairs
from dprecipe.privacy.composition import Composition, WindowError
from dprecipe.privacy.loss import Loss, from_atoms

MOST = 1 << 21


def brute_force(loss, count, epsilon):
    masses = np.array([1.0])
    for _ in range(count):
        masses = np.convolve(masses, loss.masses)
    at = loss.step * (count * loss.first + np.arange(len(masses)))
    infinity = 1 - (1 - loss.infinity) ** count
    return infinity + float(np.sum(masses * np.maximum(0, -np.expm1(np.minimum(epsilon - at, 0)))))


SMALL = from_atoms(np.array([-0.9, -0.1, 0.4, 1.3]), np.array([0.2, 0.4, 0.3, 0.1 - 1e-7]), 0.05, infinity=1e-7)


@pytest.mark.parametrize("count", [1, 7, 40])
@pytest.mark.parametrize("epsilon", [0.0, 1.02, 6.0])
def test_a_small_distribution_against_convolutions(count, epsilon):
    got = Composition([SMALL], [count], MOST).delta(epsilon, 1.0)
    want = brute_force(SMALL, count, epsilon)
    assert want * (1 - 1e-12) <= got <= want * (1 + 1e-8)


def test_epsilon_is_the_inverse_of_delta():
    composition = Composition([SMALL], [40], MOST)
    for delta in (0.3, 1e-2, 1e-5):
        epsilon = composition.epsilon(delta, 1.0)
        assert brute_force(SMALL, 40, epsilon) <= delta
        assert brute_force(SMALL, 40, epsilon - 1e-6) > delta * (1 - 1e-9)


def test_mass_at_infinity_is_never_lost():
    composition = Composition([SMALL], [40], MOST)
    assert composition.infinity == pytest.approx(40e-7, rel=1e-5)
    assert composition.epsilon(1e-6, 1.0) is None
    assert composition.delta(1e3, 1.0) >= 39e-7


@pytest.mark.parametrize("steps", [1, 100, 10**6])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-14])
def test_gaussians_against_their_closed_form(steps, delta):
    total = 1.3  # μ of the composition
    mu = total / math.sqrt(steps)
    exact = gdp.epsilon(total, delta)
    step = math.sqrt(12 * 1e-4 * exact / (steps * 12))
    grid = pairs.gaussian(mu, step, 1e-10 * delta / steps, 1 << 21)
    got = Composition([grid], [steps], MOST).epsilon(delta, 5.0)
    assert exact * (1 - 1e-12) <= got <= exact * (1 + 3e-4)


def test_splitting_a_count_changes_nothing_and_order_neither():
    grid = pairs.poisson_gaussian(0.05, 1.0, 1e-3, 1e-12, MOST)
    other = pairs.poisson_gaussian(0.01, 0.8, 1e-3, 1e-12, MOST)
    whole = Composition([grid, other], [100, 50], MOST).epsilon(1e-5, 4.0)
    split = Composition([other, grid, grid], [50, 30, 70], MOST).epsilon(1e-5, 4.0)
    assert split == pytest.approx(whole, rel=1e-9)


def test_monte_carlo():
    """δ(ε) = E[(1 - exp(ε - L))+] over composed losses drawn from the mechanism itself, not from a grid.

    With 400,000 draws of a [0, 1] variable, a deviation of 5.5 standard errors has probability below 4e-8.
    """
    q, sigma, steps, epsilon, draws = 0.2, 1.0, 20, 1.0, 400_000
    rng = np.random.default_rng(7)
    total = np.zeros(draws)
    for _ in range(steps):
        x = sigma * rng.standard_normal(draws) + (rng.random(draws) < q)
        total += np.log1p(q * np.expm1((x - 0.5) / sigma**2))
    values = np.maximum(0, -np.expm1(np.minimum(epsilon - total, 0)))
    error = 5.5 * values.std() / math.sqrt(draws)
    grid = pairs.poisson_gaussian(q, sigma, 1e-3, 1e-14, MOST)
    assert Composition([grid], [steps], MOST).delta(epsilon, 2.0) == pytest.approx(values.mean(), abs=error)


def test_a_window_that_is_too_wide_is_refused():
    with pytest.raises(WindowError):
        Composition([pairs.gaussian(1.0, 1e-3, 1e-10, MOST)], [100], 1024).epsilon(1e-5, 1.0)


def test_distributions_on_different_grids_are_refused():
    with pytest.raises(ValueError, match="one grid"):
        Composition([SMALL, Loss(0.1, 0, np.array([1.0]))], [1, 1], MOST)
    with pytest.raises(ValueError, match="one grid"):
        Composition([], [], MOST)


def test_chernoff_bounds_every_delta():
    composition = Composition([SMALL], [40], MOST)
    for epsilon in (0.0, 2.0, 10.0):
        assert brute_force(SMALL, 40, epsilon) <= min(composition.chernoff(epsilon, t) for t in (0.1, 1.0, 3.0))


def test_many_wide_windows_are_not_kept():
    """δ at many ε far apart: the windows of an extreme plan took 2.5 GB. What is given stays an upper bound."""
    mu, steps, bins = 0.6, 400, 1 << 13
    total = mu * math.sqrt(steps)
    composition = Composition([pairs.gaussian(mu, 0.05, 1e-14, 1 << 21)], [steps], bins)
    for epsilon in range(0, 400, 10):
        assert composition.delta(float(epsilon), 1.0) >= gdp.delta(total, float(epsilon)) * (1 - 1e-9)
    kept = sum(len(window.losses) for window in composition._windows)
    assert len(composition._windows) > 1
    assert kept <= 4 * bins
