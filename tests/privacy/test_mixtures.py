"""Mixtures of shifted Gaussians: their Rényi curves against that of one unit and against integrals in many digits."""

from __future__ import annotations

import math

import mpmath
import pytest
from scipy import stats

from dprecipe.privacy import curves
from dprecipe.privacy.mixtures import binomial_weights, hypergeometric_weights

ORDERS = (1.02, 1.5, 2.0, 16.0, 64.0, 256.0)


@pytest.mark.parametrize("sigma", [0.2, 1.0, 5.0, 100.0])
@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.9])
def test_a_group_of_one_has_the_curve_of_one_unit(sigma: float, rate: float) -> None:
    """To the last digits, however small: of a rare unit under much noise the curve is far below 1e-12."""
    found = curves.mixed_gaussian(binomial_weights(1, rate), sigma, ORDERS)
    assert found == pytest.approx(curves.poisson_gaussian(rate, sigma, ORDERS), rel=1e-9, abs=0)


def test_where_an_integral_would_take_too_long_the_largest_shift_bounds_it() -> None:
    found = curves.mixed_gaussian(binomial_weights(3, 0.1), 0.01, [500.0])
    assert found == pytest.approx(curves.gaussian(300.0, [500.0]))


@pytest.mark.parametrize(
    ("weights", "sigma"),
    [
        (binomial_weights(3, 0.2), 1.5),
        (binomial_weights(3, 0.9), 0.7),
        (hypergeometric_weights(3, 20, 6), 1.0),
        (binomial_weights(4, 1e-3), 4.0),
    ],
)
@pytest.mark.parametrize("order", [1.5, 2.0, 7.0])
def test_both_directions_are_bounded(weights: tuple[float, ...], sigma: float, order: float) -> None:
    with mpmath.workdps(30):

        def ratio(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.fsum(
                w * mpmath.e ** ((j * x - mpmath.mpf(j) ** 2 / 2) / sigma**2) for j, w in enumerate(weights)
            )

        def divergence(power: float) -> float:
            places = [-15 * sigma - 5, 0, 2, 4, order * len(weights), order * len(weights) + 15 * sigma]
            whole = mpmath.quad(lambda x: mpmath.npdf(x, 0, sigma) * ratio(x) ** power, places)
            return float(mpmath.log(whole) / (order - 1))

        exact = max(divergence(order), divergence(1 - order))
    assert curves.mixed_gaussian(weights, sigma, [order])[0] == pytest.approx(exact, rel=1e-8)


def test_weights_are_those_of_the_distributions() -> None:
    assert binomial_weights(4, 0.3) == pytest.approx(stats.binom.pmf(range(5), 4, 0.3))
    assert hypergeometric_weights(3, 50, 8) == pytest.approx(stats.hypergeom.pmf(range(4), 50, 3, 8))
    assert hypergeometric_weights(5, 50, 2) == pytest.approx(stats.hypergeom.pmf(range(3), 50, 5, 2))
    assert math.fsum(hypergeometric_weights(4, 10**7, 10**5)) == pytest.approx(1)
