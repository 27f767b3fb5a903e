"""Guarantees for several units together: against the Gaussian, of which the truth is known."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.privacy import gdp, groups, risk

SIZES = st.integers(1, 6)


@given(st.floats(0.01, 3), st.floats(0, 4), SIZES)
def test_a_pair_of_one_bounds_the_truth_of_several(mu: float, epsilon: float, size: int) -> None:
    """Of N(μ, 1) against N(0, 1) for one unit, k units move the number by kμ."""
    extended = groups.extend_point(epsilon, gdp.delta(mu, epsilon), size)
    if extended is not None:
        assert extended[0] >= size * epsilon
        assert gdp.delta(size * mu, extended[0]) <= extended[1] * (1 + 1e-9)


@given(st.floats(0.01, 8), st.floats(1e-12, 1e-3), SIZES)
def test_it_is_never_more_than_the_usual_form(epsilon: float, delta: float, size: int) -> None:
    extended = groups.extend_point(epsilon, delta, size)
    usual = size * math.exp((size - 1) * epsilon) * delta
    if extended is None:
        assert usual >= 1
    else:
        assert delta <= extended[1] <= usual * (1 + 1e-4)


def test_pure_guarantees_add_up_and_one_unit_stays_as_it_is() -> None:
    assert groups.extend_point(0.5, 0.0, 3) == (1.5, 0.0)
    assert groups.extend_point(2.0, 1e-5, 1) == (2.0, pytest.approx(1e-5, rel=2e-5))


def test_what_bounds_nothing_is_left_out() -> None:
    assert groups.extend_point(3.0, 1e-5, 5) is None
    assert groups.extend_point(400.0, 1e-300, 2) is None
    assert groups.extend_points([(400.0, 1e-300), (3.0, 1e-5)], 9) == [(0.0, 1.0)]


@given(st.floats(0.01, 2), SIZES)
def test_the_best_guess_about_several_is_never_below_the_truth(mu: float, size: int) -> None:
    truth = float(mpmath.ncdf(mpmath.mpf(size) * mu / 2))
    exact = [(0.0, gdp.delta(groups.extend_gaussian(mu, size), 0.0))]
    assert truth <= risk.best_guess(exact, 0.5) * (1 + 1e-9) <= truth * (1 + 2e-5)
    by_points = groups.extend_points(groups.list_gaussian_points(mu, 6.0), size)
    assert truth <= risk.best_guess(by_points, 0.5) * (1 + 1e-9)
