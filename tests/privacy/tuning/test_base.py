"""One run's δ(ε) in both directions: closed forms, the accountants, and what a table may do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprecipe.mechanisms.pate.events import SanitisedCost
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.privacy import accountants, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.hockey_stick import HockeyStick, lower_hull, lower_of
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)
from dprecipe.privacy.tuning.base import base_curves

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
AT = np.array([0.0, 0.3, 1.0, 2.0])


@pytest.mark.parametrize(
    ("charges", "relation"),
    [
        ((Charge(PoissonGaussian(0.02, 1.2), 300),), ADD),
        ((Charge(PoissonGaussian(0.02, 1.2), 300), Charge(Gaussian(6.0), 2)), REPLACE),
        ((Charge(PoissonGaussian(0.4, 3.0), 5),), ADD),
        ((Charge(TruncatedPoissonGaussian(0.01, 1.1, 60_000, 700), 100),), ADD),
        ((Charge(FixedSizeGaussian(6000, 60, 4.0), 100),), REPLACE),
        ((Charge(PoissonLaplace(0.1, 3.0), 10),), ADD),
    ],
)
def test_the_table_is_the_accountants_profile(charges, relation) -> None:
    worst = np.maximum(*(curve.at(AT) for curve in base_curves(charges, relation)))
    expected = [accountants.delta(charges, float(e), relation, "pld") for e in AT]
    for result, theirs in zip(worst, expected, strict=True):
        assert result == pytest.approx(theirs, rel=2e-2, abs=1e-13)


def test_a_gaussian_is_exact_at_either_sign() -> None:
    first, second = base_curves((Charge(Gaussian(2.0), 3),), ADD)
    mu = math.sqrt(3) / 2
    assert first is second
    for e in (-3.0, -1.0, -0.01, 0.0, 0.777, 4.0):
        exact = gdp.delta(mu, e)
        assert exact * (1 - 1e-9) <= float(first.at(np.array(e))) <= exact * (1 + 1e-4)


def test_both_directions_mirror_each_other() -> None:
    """δ of one at -ε is 1 - exp(-ε) + exp(-ε) δ of the other at ε."""
    removed, added = base_curves((Charge(PoissonGaussian(0.3, 1.0), 5),), ADD)
    for e in (0.2, 0.7, 1.5):
        mirrored = -math.expm1(-e) + math.exp(-e) * float(added.at(np.array(e)))
        assert float(removed.at(np.array(-e))) == pytest.approx(mirrored, rel=1e-3)
    assert float(removed.at(np.array(1.5))) > 1.01 * float(added.at(np.array(1.5)))


def test_what_has_no_losses_goes_by_what_it_has() -> None:
    costs = (Charge(SanitisedCost(0.03, 9.0, 12.0), 1),)
    run = ProjectedDescent("replace_one", "gaussian", 90, 8, "permuted", "last", ((13, 2.0, 0.9, 3.0),))
    for charges, relation in ((costs, ADD), ((Charge(run, 1),), REPLACE)):
        curve, other = base_curves(charges, relation)
        assert curve is other
        for e in (0.2, 1.0):
            bound = accountants.delta(charges, e, relation, "pld")
            assert bound * (1 - 1e-9) <= float(curve.at(np.array(e))) <= bound * 1.05 + 1e-12
    unknown, _ = base_curves((Charge(run, 1),), ADD)
    assert (unknown.at(AT) == 1).all()


def test_a_chord_is_above_and_ends_are_safe() -> None:
    e = np.linspace(-4, 4, 9)
    table = HockeyStick(e, np.array([gdp.delta(1.0, float(x)) for x in e]))
    at = np.linspace(-9, 9, 181)
    exact = np.array([gdp.delta(1.0, float(x)) for x in at])
    assert (table.at(at) >= exact * (1 - 1e-11)).all()
    assert float(table.at(np.array(-math.inf))) == pytest.approx(1.0)
    assert float(table.at(np.array(math.inf))) == pytest.approx(table.deltas[-1])
    finer = HockeyStick(np.linspace(-4, 4, 50), np.array([gdp.delta(1.0, float(x)) for x in np.linspace(-4, 4, 50)]))
    least = lower_of(table, finer).at(at)
    assert (least >= exact * (1 - 1e-11)).all()
    assert (least <= finer.at(at) * (1 + 1e-9)).all()


def test_images_of_events_are_neyman_and_pearsons() -> None:
    """Of N(μ, 1) against N(0, 1): the largest image of x is Φ(Φ⁻¹(x) + μ), the least Φ(Φ⁻¹(x) - μ)."""
    from scipy import special

    curve, _ = base_curves((Charge(Gaussian(1.0), 1),), ADD)
    x = special.ndtr(np.linspace(-5, 5, 41))
    largest, least = special.ndtr(special.ndtri(x) + 1), special.ndtr(special.ndtri(x) - 1)
    assert (curve.largest_image(x) >= largest * (1 - 1e-11)).all()
    assert curve.largest_image(x) == pytest.approx(largest, rel=1e-4)
    assert (curve.least_image(x) <= least * (1 + 1e-11)).all()
    assert curve.least_image(x) == pytest.approx(least, rel=1e-3)


def test_corners_of_the_greatest_convex_function_below() -> None:
    assert lower_hull(np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 0.2, 0.3, 0.0])) == [0, 1, 3]
