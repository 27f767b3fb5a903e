"""Exact Gaussian DP against 60-digit arithmetic."""

import json
import math
from pathlib import Path

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.privacy import gdp

RECORDS = json.loads((Path(__file__).parents[1] / "golden" / "accounting.json").read_text())["records"]


def oracle(mu, epsilon):
    with mp.workdps(400):
        mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
        return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


CASES = [(0.001, 0.0), (0.001, 0.01), (0.05, 0.2), (0.25, 1.0), (1.0, 0.0), (1.0, 5.0), (1.0, 30.0), (3.0, 2.0)]
CASES += [(10.0, 20.0), (10.0, 130.0), (40.0, 0.0), (60.0, 100.0), (60.0, 2500.0), (2.0, 65.0)]


@pytest.mark.parametrize(("mu", "epsilon"), CASES)
def test_delta_is_exact_and_never_below(mu, epsilon):
    want = oracle(mu, epsilon)
    got = gdp.delta(mu, epsilon)
    assert mp.mpf(got) >= want or got == 1.0
    assert got == pytest.approx(float(want), rel=1e-10)


def test_delta_at_the_ends():
    assert gdp.delta(0.0, 1.0) == 0.0
    assert gdp.delta(math.inf, 1.0) == 1.0
    assert gdp.delta(1.0, math.inf) == 0.0
    for mu, epsilon in [(-1.0, 1.0), (math.nan, 1.0), (1.0, math.nan)]:
        with pytest.raises(ValueError, match="expected mu"):
            gdp.delta(mu, epsilon)


@given(st.floats(1e-3, 50), st.floats(-30, -0.3))
def test_epsilon_inverts_delta_outward(mu, log_delta):
    delta = 10**log_delta
    epsilon = gdp.epsilon(mu, delta)
    assert gdp.delta(mu, epsilon) <= delta
    if epsilon > 0:
        assert gdp.delta(mu, epsilon * (1 - 1e-10)) > delta * (1 - 1e-9)


@given(st.floats(0, 50), st.floats(-20, -0.3))
def test_mu_for_inverts_delta_outward(epsilon, log_delta):
    delta = 10**log_delta
    mu = gdp.mu_for(epsilon, delta)
    assert gdp.delta(mu, epsilon) <= delta
    assert gdp.delta(mu * (1 + 1e-9), epsilon) > delta * (1 - 1e-9)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan, -1.0])
def test_delta_outside_its_range_is_refused(delta):
    with pytest.raises(ValueError, match="expected 0 < delta < 1"):
        gdp.epsilon(1.0, delta)


@pytest.mark.parametrize("record", [r for r in RECORDS if r["kind"] == "shuffle_one_epoch"])
def test_shuffled_epoch_golden(record):
    i = record["inputs"]
    got = gdp.epsilon(1 / i["sigma"], i["delta"])
    assert got == pytest.approx(record["sound_upper_eps"], rel=1e-3)
    assert got >= record["lower_bound_eps"]
