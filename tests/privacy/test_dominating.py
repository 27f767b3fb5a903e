"""The best Gaussian-DP bound of a profile."""

import math

import pytest

from dprecipe.privacy import accountants, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dominating import gdp_mu
from dprecipe.privacy.events import Charge, Gaussian, PoissonGaussian

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 1000), (0.01, 4.0, 10_000), (0.001, 0.4, 1000)])
def test_the_gaussian_lies_above_the_profile_and_touches_it(q, sigma, steps, relation):
    charges = [Charge(PoissonGaussian(q, sigma), steps)]
    bound = gdp_mu(charges, relation)
    assert not bound.exact
    apart = (bound.to_epsilon - bound.from_epsilon) / 300
    grid = [bound.from_epsilon + apart * k for k in range(301)]
    profile = accountants.profile(charges, relation, "pld", grid)
    assert all(d <= gdp.delta(bound.mu, e) * (1 + 1e-6) for e, d in profile)
    smaller = bound.mu * 0.997
    assert any(d > gdp.delta(smaller, e) for e, d in profile)
    assert profile[0][1] == pytest.approx(1e-2, rel=2e-2)
    assert profile[-1][1] == pytest.approx(1e-9, rel=2e-2)


def test_a_gaussian_is_its_own_best_bound():
    bound = gdp_mu([Charge(Gaussian(4.0), 8)], REPLACE)
    assert bound.exact
    assert bound.mu == pytest.approx(2 * math.sqrt(8) / 4, rel=1e-3)
    assert bound.mu >= 2 * math.sqrt(8) / 4


def test_bad_ranges_are_refused_and_trivial_profiles_have_none():
    with pytest.raises(ValueError, match="lowest"):
        gdp_mu([], ADD, highest=1e-9, lowest=1e-2)
    assert gdp_mu([Charge(PoissonGaussian(1e-12, 1.0), 1)], ADD) is None
