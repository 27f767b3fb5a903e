"""The pairs of DP-SGD on a grid against closed forms of a single step."""

import numpy as np
import pytest
from scipy import stats

from dprecipe.privacy import pairs
from dprecipe.privacy.loss import swap_loss

MOST = 1 << 20


def delta_of(grid, epsilon):
    return grid.infinity + float(
        np.sum(grid.masses * np.maximum(0.0, -np.expm1(np.minimum(epsilon - grid.losses, 0.0))))
    )


def integral(above, below, epsilon):
    """∫ max(0, P - exp(ε) Q): a trapezoidal sum, off by about the square of its spacing."""
    x, spacing = np.linspace(-14, 15, 400_001, retstep=True)
    return float(np.maximum(0.0, above(x) - np.exp(epsilon) * below(x)).sum() * spacing)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.6, 0.7)])
def test_one_sampled_step(q, sigma, epsilon):
    def base(x):
        return stats.norm.pdf(x, 0, sigma)

    def plus(x):
        return (1 - q) * base(x) + q * stats.norm.pdf(x, 1, sigma)

    def minus(x):
        return (1 - q) * base(x) + q * stats.norm.pdf(x, -1, sigma)

    removed = pairs.poisson_gaussian(q, sigma, 1e-4, 1e-20, MOST)
    replaced = pairs.poisson_gaussian_replaced(q, sigma, 1e-4, 1e-20, MOST)
    cases = [
        (removed, plus, base),
        (swap_loss(removed), base, plus),
        (replaced, plus, minus),
        (swap_loss(replaced), minus, plus),
    ]
    for grid, above, below in cases:
        truth = integral(above, below, epsilon)
        got = delta_of(grid, epsilon)
        assert got >= truth - 1e-9
        assert got == pytest.approx(truth, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("mu", [0.01, 1.0, 6.0])
def test_the_plain_gaussian_is_its_own_mirror_image(mu):
    grid = pairs.gaussian(mu, mu / 500, 1e-20, MOST)
    mirror = swap_loss(grid)
    for epsilon in (0.0, mu / 2, 2 * mu):
        truth = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        assert delta_of(grid, epsilon) == pytest.approx(truth, rel=1e-4)
        assert delta_of(grid, epsilon) >= truth * (1 - 1e-12)
        assert delta_of(mirror, epsilon) == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize(("q", "sigma"), [(1e-6, 0.3), (1e-6, 100.0), (0.999, 0.3), (0.5, 100.0)])
def test_masses_add_up_and_tails_are_charged_at_the_extremes(q, sigma):
    for make in (pairs.poisson_gaussian, pairs.poisson_gaussian_replaced):
        tail = 1e-14
        coarse = make(q, sigma, 1e-2, tail, MOST)
        step = (coarse.last - coarse.first) * 1e-2 / 3000
        grid = make(q, sigma, step, tail, MOST)
        assert grid.masses.min() >= 0
        assert grid.masses.sum() + grid.infinity == pytest.approx(1.0, abs=1e-12)
        assert grid.infinity <= 3 * tail
        assert grid.missing <= 3 * tail
        q_masses = (grid.masses * np.exp(-grid.losses)).sum()
        assert q_masses + grid.missing == pytest.approx(1.0, abs=1e-9)


def test_a_grid_with_too_many_cells_is_refused():
    with pytest.raises(pairs.GridError):
        pairs.poisson_gaussian(0.01, 1.0, 1e-9, 1e-10, 1000)
