"""What a guarantee says of attacks: reference values, the best attacks themselves, and rounding."""

import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest

from dprecipe.privacy import gdp
from dprecipe.privacy.accountants import epsilon, profile
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.privacy.risk import (
    AttackRisk,
    advantage,
    assess_point,
    assess_points,
    best_guess,
    list_points,
    odds_exponent,
    odds_failure,
    true_positive_rate,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "risk.json").read_text())["records"]
ADD = Neighbouring.ADD_OR_REMOVE_ONE


def assess_charges(charges: list[Charge], claimed: float, delta: float) -> AttackRisk:
    return assess_points(list_points(charges, claimed, delta, ADD, "pld"), delta)


def records(group):
    found = [pytest.param(r, id=r["id"]) for r in GOLDEN if r["group"] == group]
    assert len(found) > 2
    return found


def gaussian_points(mu, largest, count=6001):
    return [(e, gdp.delta(mu, e)) for e in np.linspace(0, largest, count).tolist()]


@pytest.mark.parametrize("record", records("risk_tpr_point"))
def test_true_positive_rates_of_points(record):
    given = record["inputs"]
    got = true_positive_rate([(given["eps"], given["delta"])], given["fpr"])
    assert got == pytest.approx(record["value"], rel=record["tol"])


@pytest.mark.parametrize("record", records("risk_tpr_profile"))
def test_true_positive_rates_of_profiles(record):
    given = record["inputs"]
    if given["profile"] != "gdp":  # the accountant's profile has the larger δ of both directions
        charges = [Charge(PoissonGaussian(given["q"], given["sigma"]), 1)]
        points = profile(charges, ADD, "pld", np.linspace(0, 5, 201).tolist())
        assert (
            record["value"] * (1 - record["tol"]) <= true_positive_rate(points, given["fpr"]) <= record["value"] * 1.01
        )
        return
    mu, x = given["mu"], given["fpr"]
    got = true_positive_rate(gaussian_points(mu, mu * mu / 2 + 6 * mu), x)
    assert got == pytest.approx(record["value"], rel=record["tol"])
    exact = float(mpmath.ncdf(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(x) - 1) + mu))
    assert got >= exact * (1 - 1e-12)


@pytest.mark.parametrize("record", records("risk_advantage_point"))
def test_advantages_of_points(record):
    given = record["inputs"]
    assert advantage([(given["eps"], given["delta"])]) == pytest.approx(record["value"], rel=record["tol"])


@pytest.mark.parametrize("record", records("risk_advantage_gdp"))
def test_advantages_of_gaussians(record):
    mu = record["inputs"]["mu"]
    assert advantage([(0.0, gdp.delta(mu, 0.0)), (1.0, gdp.delta(mu, 1.0))]) == pytest.approx(
        record["value"], rel=1e-10
    )


@pytest.mark.parametrize("record", records("risk_loss_tail_profile_bound"))
def test_tails_of_the_loss(record):
    given = record["inputs"]
    got = odds_failure(gaussian_points(given["mu"], given["eps"]), given["eps"])
    if record["value"] < 0.9:  # above, the reference takes ε below 0 as well
        assert got == pytest.approx(record["value"], rel=1e-4)
    assert got >= record["value"] * (1 - 1e-5)
    exact = float(mpmath.ncdf(given["mu"] / 2 - given["eps"] / given["mu"]))
    assert got >= exact


def test_no_attack_on_a_small_mechanism_does_better():
    """All attacks on a mechanism of five outcomes, all events of it, against bounds from its exact profile."""
    p = np.array([0.4, 0.3, 0.2, 0.09, 0.01])
    q = np.array([0.25, 0.35, 0.3, 0.1, 0.0])

    def delta(e):
        return max(np.maximum(p - math.exp(e) * q, 0).sum(), np.maximum(q - math.exp(e) * p, 0).sum())

    points = [(e, min(1.0, delta(e) * (1 + 1e-12))) for e in np.linspace(0, 3, 400)]
    best = 0.0
    for first, second in ((p, q), (q, p)):
        for event in itertools.product((0, 1), repeat=5):
            hit, false = float(first @ event), float(second @ event)
            assert hit <= true_positive_rate(points, false) + 1e-12
            best = max(best, hit - false)
        ratios = first / np.maximum(second, 1e-300)
        for exponent in (0.1, 0.3, 0.5, 1.0, 3.0):
            assert first[ratios > math.exp(exponent)].sum() <= odds_failure(points, exponent) + 1e-12
    assert advantage(points) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("prior", [0.05, 0.1, 0.5, 0.7])
def test_no_guess_on_a_small_mechanism_is_right_more_often(prior):
    """All rules of a guesser on five outcomes; exact at the odds of the prior, a bound from other points."""
    p, q = np.array([0.4, 0.3, 0.2, 0.09, 0.01]), np.array([0.25, 0.35, 0.3, 0.1, 0.0])
    rules = itertools.product((0, 1), repeat=5)
    best = max(prior * float(p @ rule) + (1 - prior) * (1 - float(q @ rule)) for rule in map(np.array, rules))

    def delta(e):
        return max(np.maximum(p - math.exp(e) * q, 0).sum(), np.maximum(q - math.exp(e) * p, 0).sum())

    odds = abs(math.log((1 - prior) / prior))
    points = [(e, delta(e)) for e in np.linspace(0, 3, 13)]
    assert best_guess([*points, (odds, delta(odds))], prior) >= best - 1e-12
    assert best_guess(points, prior) >= best - 1e-12
    if prior <= 0.5:  # δ is that of the worse of both orders
        one = np.maximum(p - math.exp(odds) * q, 0).sum()
        assert best == pytest.approx(1 - prior + prior * one, rel=1e-12)
        assert best_guess([(odds, delta(odds))], prior) == pytest.approx(1 - prior + prior * delta(odds), rel=1e-12)


def test_guesses_on_gaussians_by_closed_form():
    """max of π P(S) + (1-π)(1 - Q(S)) for N(μ, 1) against N(0, 1), at the threshold of the likelihood ratio."""
    mu = 1.5
    charges = [Charge(Gaussian(1 / mu), 1)]
    risk = assess_charges(charges, gdp.epsilon(mu, 1e-6), 1e-6)
    for prior, success, believed in risk.guesses:
        threshold = mu / 2 + math.log((1 - prior) / prior) / mu
        exact = prior * float(mpmath.ncdf(mu - threshold)) + (1 - prior) * float(mpmath.ncdf(threshold))
        assert exact <= success <= exact * 1.0005
        odds = risk.odds_factor * prior / (1 - prior)
        assert odds / (1 + odds) <= believed <= min(1.0, odds / (1 + odds) * (1 + 2e-5))


def test_the_factor_of_odds_is_stated_with_its_failure():
    points = gaussian_points(1.0, 8.0, 801)
    exponent = odds_exponent(points, 2e-5)
    assert odds_failure(points, exponent * (1 + 1e-9)) <= 2e-5 * (1 + 1e-6)
    assert odds_failure(points, exponent * (1 - 1e-3)) > 2e-5
    risk = assess_point(1.0, 1e-5)
    assert risk.odds_factor == pytest.approx(2 * math.e, rel=1e-5)  # e^(ε + log 2), but for 2 δ
    assert risk.odds_failure == 2e-5
    pure = assess_point(1.0, 0.0)
    assert pure.odds_factor == pytest.approx(math.e, rel=1e-5)
    assert pure.odds_factor >= math.e
    assert pure.odds_failure == 0


def test_charges_by_their_profile_are_bounded_more_tightly_than_by_a_point():
    charges = [Charge(PoissonGaussian(0.02, 1.0), 500)]
    claimed = epsilon(charges, 1e-5, ADD, "pld")
    risk, point = assess_charges(charges, claimed, 1e-5), assess_point(claimed, 1e-5)
    for (x, rate), (_, loose) in zip(risk.true_positive_rates, point.true_positive_rates, strict=True):
        assert x < rate < loose
    assert risk.advantage < 0.7 * point.advantage
    assert risk.odds_factor < point.odds_factor


def test_gaussians_nearly_attain_the_bounds_that_are_printed():
    mu = 0.8
    charges = [Charge(Gaussian(1 / mu), 1)]
    risk = assess_charges(charges, gdp.epsilon(mu, 1e-6), 1e-6)
    for x, rate in risk.true_positive_rates:
        exact = float(mpmath.ncdf(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(x) - 1) + mu))
        assert exact <= rate <= exact * 1.002
        assert float(f"{rate:.5e}") == rate  # six digits
    exact = float(2 * mpmath.ncdf(mu / 2) - 1)
    assert exact <= risk.advantage <= exact * (1 + 2e-5)


def test_nothing_and_everything():
    nothing = assess_points([(0.0, 0.0)], 0.0)
    assert all(x <= rate <= x * (1 + 2e-5) for x, rate in nothing.true_positive_rates)
    assert (nothing.advantage, nothing.odds_failure) == (0.0, 0.0)
    assert 1 <= nothing.odds_factor <= 1 + 2e-5
    for everything in (assess_point(math.inf, 1e-5), assess_point(800.0, 1e-5), assess_point(0.0, 1.0)):
        assert {rate for _, rate in everything.true_positive_rates} == {1.0}
        assert everything.advantage == 1
        assert {guess[1:] for guess in everything.guesses} == {(1.0, 1.0)} or everything.odds_factor < math.inf
    assert assess_point(math.inf, 1e-5).to_json()["odds_factor"] is None
    assert [success for _, success, _ in nothing.guesses] == pytest.approx([0.99, 0.9, 0.5], rel=2e-5)
    assert [believed for *_, believed in nothing.guesses] == pytest.approx([0.01, 0.1, 0.5], rel=4e-5)
    assert assess_charges([], 0.0, 1e-5).advantage <= 1e-5 * (1 + 1e-5)
    for wrong in ([], [(-1.0, 0.1)], [(1.0, 2.0)], [(math.nan, 0.0)]):
        with pytest.raises(ValueError, match="expected points"):
            assess_points(wrong, 1e-5)
