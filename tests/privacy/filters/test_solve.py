"""The noise with which so many runs fit."""

import pytest

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.calibrate import CalibrationError
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Cap, Spent
from dprecipe.privacy.filters.cost import cost_of
from dprecipe.privacy.filters.filter import admits, fits_share, mixture_epsilon
from dprecipe.privacy.filters.solve import solve_noise
from dprecipe.privacy.noisy_sums import FixedSizeGaussian, Gaussian, PoissonGaussian

ADD = Neighbouring.ADD_OR_REMOVE_ONE
NOTHING = Spent((0.0,) * 9)
CAP = Cap(3.0, 1e-5)


def run(sigma):
    return [Charge(PoissonGaussian(0.01, sigma), 500)]


@pytest.mark.parametrize("runs", [1, 20, 0.5])
def test_the_least_noise_for_so_many_runs(runs):
    sigma = solve_noise(run, runs, NOTHING, CAP, ADD)
    assert float(f"{sigma:.5e}") == sigma
    total = cost_of(run(sigma), ADD, CAP.orders).times(runs)
    assert admits(total, CAP)
    assert mixture_epsilon(total, CAP) > CAP.epsilon * (1 - 1e-3)
    assert not admits(cost_of(run(sigma * (1 - 2e-5)), ADD, CAP.orders).times(runs), CAP)


def test_a_tenth_of_what_is_left():
    spent = cost_of([Charge(Gaussian(3.0), 1)], ADD, CAP.orders)
    sigma = solve_noise(lambda s: [Charge(Gaussian(s), 1)], 10, spent, CAP, ADD)
    assert fits_share(spent, cost_of([Charge(Gaussian(sigma), 1)], ADD, CAP.orders), CAP, 0.1)
    assert not fits_share(spent, cost_of([Charge(Gaussian(sigma * 0.9999), 1)], ADD, CAP.orders), CAP, 0.1)
    assert sigma > solve_noise(lambda s: [Charge(Gaussian(s), 1)], 10, NOTHING, CAP, ADD)


def test_what_no_noise_can_do():
    full = cost_of([Charge(Gaussian(0.5), 1)], ADD, CAP.orders)
    with pytest.raises(CalibrationError) as refusal:
        solve_noise(run, 1, full, CAP, ADD)
    assert refusal.value.reason == "too_tight"
    with pytest.raises(CalibrationError) as refusal:
        solve_noise(lambda s: [Charge(Gaussian(1e6 * s), 1)], 1, NOTHING, CAP, ADD)
    assert refusal.value.reason == "never_reached"
    with pytest.raises(ValueError, match="runs > 0"):
        solve_noise(run, 0, NOTHING, CAP, ADD)
    with pytest.raises(Exception, match="no bound for add_or_remove_one"):
        solve_noise(lambda s: [Charge(FixedSizeGaussian(100, 10, s), 1)], 1, NOTHING, CAP, ADD)
