"""Claims of a step, and what its bound says of a run."""

import math
from fractions import Fraction

import pytest

from dprecipe.privacy import accountants, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.implied import (
    LONGEST,
    implied_epsilon,
    run_curve,
    step_curve,
    step_mu,
    step_response,
)
from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.privacy.noisy_sums import FixedSizeGaussian, Gaussian, PoissonGaussian, PoissonLaplace
from dprecipe.privacy.rounding import round_down

ADD = Neighbouring.ADD_OR_REMOVE_ONE


def imply(event, count, claimed, lower, stages=()):
    return implied_epsilon(stages, (Charge(event, count),), ADD, 1e-5, claimed, lower)


def test_the_response_of_a_step_ends_where_little_more_is_seen():
    assert step_response(Gaussian(2.0)) == (1.0,)
    assert step_mu(Gaussian(2.0)) == 0.5
    response = step_response(CycleGaussian(2.0, 0.5, 100, 3))
    assert response == (1.0, 0.5)  # 1.118 of 1.155 is 0.968; the first alone, 0.866
    assert step_mu(CycleGaussian(2.0, 0.5, 100, 3)) == pytest.approx(math.sqrt(1.25) / 2)
    bands = (1.0, 0.5, 0.375, 0.3125)
    assert step_response(BandedGaussian(2.0, 0.1, bands)) == bands[:3]  # they are 0.967 of all, and two 0.917
    assert len(step_response(CycleGaussian(2.0, 1.0, 10**6, 3))) == math.ceil(0.95**2 * LONGEST)


@pytest.mark.parametrize("previous", [0.5, 0.85, 0.9, 0.95, 0.97])
def test_the_mu_of_a_step_is_the_same_on_every_machine(previous):
    """`verify` asks for exactly this number, and sums by a library differ by processor: it is the nearest one."""
    event = CycleGaussian(1.0, previous, 100, 3)
    exact = sum(Fraction(c) ** 2 for c in step_response(event))
    squares = sum(Fraction(c * c) for c in step_response(event))
    assert step_mu(event) == math.sqrt(float(squares))
    assert step_mu(event) == pytest.approx(math.sqrt(exact), rel=1e-15)


def test_a_pass_claims_at_least_what_a_step_shows():
    for previous in (0.3, 0.9, 1.0):
        event = CycleGaussian(1.5, previous, 40, 0)
        assert 0.94 * math.sqrt(event.squared_mu(1, ADD)) < step_mu(event) <= math.sqrt(event.squared_mu(1, ADD))


def test_a_bound_at_the_claim_implies_what_the_plan_says():
    event = PoissonGaussian(0.0341333, 2.14333)
    planned = accountants.epsilon((Charge(event, 300),), 1e-5, ADD, "pld")
    assert imply(event, 300, 1 / 2.14333, 1 / 2.14333) == pytest.approx(planned, rel=1e-5)


def test_unsampled_gaussian_steps_have_a_closed_form():
    assert imply(Gaussian(4.0), 16, 0.25, 0.2) == round_down(gdp.epsilon(0.2 * math.sqrt(16), 1e-5))


def test_a_bound_above_the_claim_implies_more_than_planned_and_one_of_0_implies_the_stages_alone():
    event = PoissonGaussian(0.1, 2.0)
    assert imply(event, 100, 0.5, 0.4) < imply(event, 100, 0.5, 0.5) < imply(event, 100, 0.5, 0.6)
    assert imply(event, 100, 0.5, 0.0) == 0
    stage = (Charge(Gaussian(5.0), 1),)
    assert imply(event, 100, 0.5, 0.0, stage) == round_down(gdp.epsilon(0.2, 1e-5))


def test_groups_are_scaled_together():
    event = GroupedGaussian(0.1, ((2.0, 2), (4.0, 3)))
    assert event.scale_noise(1.5).noise_multiplier == pytest.approx(1.5 * event.noise_multiplier)
    assert step_mu(event) == pytest.approx(math.sqrt(2 / 4 + 3 / 16))


def test_a_step_claims_what_it_costs_without_sampling():
    assert step_mu(PoissonGaussian(0.01, 2.0)) == 0.5
    assert step_mu(PoissonLaplace(0.01, 2.0)) is None
    curve = step_curve(PoissonGaussian(0.01, 2.0))
    for epsilon, delta in curve:
        exact = gdp.delta(0.5, epsilon)
        assert exact <= delta <= exact * (1 + 1e-4) + 1e-12
    assert curve[-1][1] <= 1.01e-6


def test_laplace_noise_is_pure_from_its_largest_loss():
    curve = step_curve(PoissonLaplace(0.01, 2.0))
    assert curve[-1][0] == pytest.approx(0.5, rel=1e-3)
    for epsilon, delta in curve:
        exact = max(0.0, 1 - math.exp((epsilon - 0.5) / 2))
        assert exact <= delta <= exact + 2e-4


@pytest.mark.parametrize("event", [FixedSizeGaussian(500, 40, 2.0), PoissonGaussian(0.08, 2.0)])
def test_a_run_is_held_against_the_curve_of_a_canary_that_keeps_its_place(event):
    charges = [Charge(event, 20)]
    at = [e for e, _ in run_curve(charges, Neighbouring.ADD_OR_REMOVE_ONE, "pld", 1.5)]
    kept = [d for _, d in run_curve(charges, Neighbouring.ADD_OR_REMOVE_ONE, "pld", 1.5)]
    expected = accountants.profile(charges, Neighbouring.ZERO_OUT_ONE, "pld", at)
    assert kept == pytest.approx([d for _, d in expected], rel=1e-5)
