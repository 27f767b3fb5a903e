"""The Gaussian filter: it holds what fits its limit, and what it has left fills it, never more."""

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.theory.filter import GaussianFilter, sum_filter
from dprecipe.privacy import accountants, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian

CHECK, ANSWER = NoisyThreshold(150.0), NoisyMax("gaussian", 40.0)


def test_it_holds_what_it_was_made_of_and_nothing_more():
    charges = [Charge(CHECK, 640), Charge(ANSWER, 340)]
    limit_filter = GaussianFilter.of(charges)
    assert limit_filter.limit == pytest.approx(640 / 150**2 + 340 * 2 / 40**2, rel=1e-14)
    assert limit_filter.holds(charges)
    assert limit_filter.holds([*charges[::-1], Charge(FilterRest(1e9), 1)])  # a rest of 1e-18
    assert not limit_filter.holds([*charges, Charge(CHECK, 1)])
    assert limit_filter.rest(charges) is None
    assert limit_filter.rest([*charges, Charge(ANSWER, 1)]) is None


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.floats(1e-4, 1e4),
    st.floats(1e-4, 1e4),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_what_is_left_fills_the_limit_and_never_passes_it(check, answer, checks, answers, some, of_those):
    """Whatever part of a plan was put and answered, the charges add up to the limit, from below."""
    planned = [Charge(NoisyThreshold(check), checks), Charge(NoisyMax("gaussian", answer), answers)]
    limit_filter = GaussianFilter.of(planned)
    put = int(checks * some)
    charges = [
        Charge(NoisyThreshold(check), put),
        Charge(NoisyMax("gaussian", answer), min(int(answers * of_those), answers)),
    ]
    rest = limit_filter.rest(charges)
    charges += [] if rest is None else [Charge(rest, 1)]
    assert limit_filter.limit * (1 - 3e-14) <= sum_filter(charges) <= limit_filter.limit * (1 + 1e-15)
    assert limit_filter.rest(charges) is None  # a run that ended, and is resumed, is charged no second one


def test_the_claim_is_that_of_the_limit():
    """A run that is charged up to its limit claims what the plan does, and not less than the limit costs: exactly, by
    40 digits, for a claim that was missing next to nothing would be no bound."""
    limit_filter = GaussianFilter.of([Charge(CHECK, 640), Charge(ANSWER, 640)])
    limit = gdp.epsilon(limit_filter.limit**0.5, 1e-5)
    for put in (0, 1, 100, 639):
        charges = [Charge(CHECK, put), Charge(ANSWER, put // 3)]
        rest = limit_filter.rest(charges)
        actual = accountants.epsilon([*charges, Charge(rest, 1)], 1e-5, Neighbouring.REPLACE_ONE, "pld")
        assert limit * (1 - 2e-12) <= actual <= limit * (1 + 1e-12)
        assert exact_delta(limit_filter.limit, actual) <= 1e-5


def exact_delta(square, epsilon):
    """δ(ε) of a Gaussian of this μ²: Φ(μ/2 - ε/μ) - exp(ε) Φ(-μ/2 - ε/μ)."""
    with mp.workdps(40):
        mu, e = mp.sqrt(mp.mpf(square)), mp.mpf(epsilon)
        return mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu)


@pytest.mark.parametrize("event", [NoisyMax("laplace", 20.0), SanitisedCost(0.1, 9.0, 9.0), PoissonGaussian(0.1, 1.0)])
def test_other_noise_has_no_place_in_it(event):
    with pytest.raises(ValueError, match="other kinds"):
        GaussianFilter(1.0).holds([Charge(event, 1)])
