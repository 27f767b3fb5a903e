"""Terms of a Rényi divergence against 60 digits."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dprecipe.privacy import divergence


def oracle(log_ratio, order):
    with mp.workdps(400):
        r, a = mp.exp(mp.mpf(log_ratio)), mp.mpf(order)
        return float(mp.log(r**a - 1 - a * (r - 1)))


RATIOS = st.one_of(st.floats(1e-12, 300), st.floats(-300, -1e-12))


@given(RATIOS, st.floats(1.01, 2000))
def test_terms_keep_their_digits(log_ratio, order):
    got = float(divergence.log_term(np.array([log_ratio]), np.array([order]))[0, 0])
    assert got == pytest.approx(oracle(log_ratio, order), rel=1e-13, abs=1e-11)


def test_terms_at_the_ends():
    ends = divergence.log_term(np.array([0.0, -1e5, 1e4]), np.array([1.5, 100.0]))
    assert np.all(ends[0] == -np.inf)
    np.testing.assert_allclose(ends[1], np.log([0.5, 99.0]), rtol=1e-15)
    np.testing.assert_allclose(ends[2], [1.5e4, 1e6], rtol=1e-15)


@example(0.6875000186264515, 0.6875, 2.0)
@given(st.floats(1e-6, 1 - 1e-6), st.floats(1e-6, 1 - 1e-6), st.floats(1.01, 200))
def test_divergence_of_two_bits(p, q, order):
    logs = divergence.log_term(np.array([math.log(p / q), math.log1p(-p) - math.log1p(-q)]), np.array([order]))
    excess = np.logaddexp(math.log(q) + logs[0], math.log1p(-q) + logs[1])
    with mp.workdps(200):
        a, x, y = mp.mpf(order), mp.mpf(p), mp.mpf(q)
        want = float(mp.log(x**a * y ** (1 - a) + (1 - x) ** a * (1 - y) ** (1 - a)) / (a - 1))
    # p/q and 1-p have errors of 1e-16, which count where p and q are nearly the same
    rel = 1e-9 + 1e-14 / max(abs(p - q), 1e-14)
    assert divergence.from_excess(excess, np.array([order]))[0] == pytest.approx(want, rel=rel, abs=1e-30)
