"""Conversions from Rényi curves."""

import math

import numpy as np
import pytest

from dprecipe.privacy import conversion, curves, gdp

ORDERS = curves.DEFAULT_ORDERS


def test_formulas_at_one_order():
    alpha, r, delta = 8.0, 0.3, 1e-6
    classic = conversion.epsilon([alpha], np.array([r]), delta, "classic")
    assert classic.value == pytest.approx(r + math.log(1 / delta) / (alpha - 1), rel=1e-15)
    improved = conversion.epsilon([alpha], np.array([r]), delta)
    want = r + math.log((alpha - 1) / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)
    assert improved.value == pytest.approx(want, rel=1e-15)
    assert improved.at_first
    assert improved.at_last


@pytest.mark.parametrize("kind", ["classic", "improved"])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
def test_the_two_directions_invert_each_other(kind, delta):
    rdp = curves.gaussian(0.7, ORDERS)
    epsilon = conversion.epsilon(ORDERS, rdp, delta, kind).value
    assert conversion.delta(ORDERS, rdp, epsilon, kind).value == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("mu", [0.05, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
def test_both_conversions_are_above_the_truth_and_improved_below_classic(mu, delta):
    rdp = curves.gaussian(mu, ORDERS)
    improved = conversion.epsilon(ORDERS, rdp, delta).value
    assert gdp.epsilon(mu, delta) <= improved <= conversion.epsilon(ORDERS, rdp, delta, "classic").value
    epsilon = mu**2
    assert gdp.delta(mu, epsilon) <= conversion.delta(ORDERS, rdp, epsilon).value


def test_edges_are_exposed():
    assert conversion.epsilon(ORDERS, curves.gaussian(1e-4, ORDERS), 1e-5).at_last
    assert conversion.epsilon(ORDERS, curves.gaussian(500.0, ORDERS), 1e-5).at_first
    best = conversion.epsilon(ORDERS, curves.gaussian(1.0, ORDERS), 1e-5)
    assert not (best.at_first)
    assert not (best.at_last)


def test_infinite_and_undefined_orders_are_passed_over():
    best = conversion.epsilon([2.0, 3.0, 4.0], np.array([math.inf, 1.0, math.nan]), 1e-5)
    assert best.order == 3.0
    assert conversion.epsilon([2.0], np.array([math.nan]), 1e-5).value == math.inf
    assert conversion.delta([2.0], np.array([math.inf]), 1.0).value == 1.0
