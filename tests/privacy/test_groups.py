"""Guarantees for several units together: against values from elsewhere, and against distributions that are known."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dprecipe.privacy import accountants, gdp, groups, risk
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)
from dprecipe.privacy.tuning.events import SelectedBest

ADD, REPLACE, BLANK = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE
SIZES = st.integers(1, 6)
RECORDS = json.loads((Path(__file__).parents[1] / "golden" / "batches.json").read_text())["records"]


def golden(group: str) -> list[dict]:
    return [record for record in RECORDS if record["group"] == group]


def bound(event: Event, count: int, delta: float, size: int, relation: Neighbouring = ADD) -> float:
    charges = [Charge(event, count)]
    one = accountants.epsilon(charges, delta, relation, "pld")
    return dict(groups.bound_groups(charges, delta, relation, "pld", one, (size,)))[size]


def event_of(record: dict) -> tuple[Event, int]:
    given = record["inputs"]
    if record["group"] == "group_poisson":
        return PoissonGaussian(given["q"], given["sigma"]), given["T"]
    if record["group"] == "group_fixed":
        return FixedSizeGaussian(given["N"], given["L"], given["sigma"]), given["T"]
    if record["group"] == "group_iterated_alloc":
        return DealtGaussian(given["sigma"], given["t"]), given["epochs"]
    return Gaussian(given["sigma"]), 1


@pytest.mark.parametrize("kind", ["group_poisson", "group_fixed", "group_iterated_gauss"])
def test_exact_forms_have_the_values_of_another_computation(kind: str) -> None:
    assert golden(kind)
    for record in golden(kind):
        event, count = event_of(record)
        value = bound(event, count, record["inputs"]["delta"], record["inputs"]["k"])
        assert value >= record["value"] * (1 - record["tol"]), record
        if record["inputs"].get("direction") != "add":  # the bound is that of both directions
            assert value <= record["value"] * (1 + 1e-3), record


@pytest.mark.slow
def test_curves_of_dealt_epochs_are_extended_as_in_another_computation() -> None:
    """That one splits ε in fewer ways: it is up to 2e-3 higher."""
    for record in golden("group_iterated_alloc"):
        event, count = event_of(record)
        if record["inputs"]["k"] > 1 and record["inputs"]["direction"] == "remove":
            value = bound(event, count, record["inputs"]["delta"], record["inputs"]["k"])
            assert record["value"] * (1 - 2e-3) <= value <= record["value"] * (1 + 1e-3), record


@given(st.floats(0.05, 3), st.floats(1e-8, 1e-2), SIZES)
def test_the_extended_curve_of_a_gaussian_is_hardly_above_the_truth(mu: float, delta: float, size: int) -> None:
    one = gdp.epsilon(mu, delta)
    curve = groups.extend_curve(
        [(e, gdp.delta(mu, e)) for reach in (1, 6) for e in groups.list_epsilons(reach * one)], size
    )
    for epsilon, value in curve.list_points():
        assert gdp.delta(size * mu, epsilon) <= value * (1 + 1e-6) + 1e-200
    found, truth = curve.epsilon(delta), gdp.epsilon(size * mu, delta)
    assert found >= truth * (1 - 1e-9)
    if size * mu < 1.5:
        assert found <= truth * 1.01 + 1e-4


@given(st.floats(0.01, 3), st.floats(1e-9, 1e-3), SIZES)
def test_it_is_never_more_than_equal_parts(epsilon: float, delta: float, size: int) -> None:
    """From one pair (ε, δ), the usual form gives kε and δ (1 + e^ε + …)."""
    usual = delta * sum(math.exp(i * epsilon) for i in range(size))
    if usual < 1:
        found = groups.extend_curve([(epsilon, delta)], size).epsilon(usual * (1 + 1e-9))
        assert found <= size * epsilon * (1 + 1e-6)


def test_a_curve_that_bounds_nothing_extends_to_none() -> None:
    assert groups.extend_curve([(0.0, 1.0)], 3).epsilon(0.5) == math.inf
    assert groups.extend_curve([(400.0, 1e-9)], 2).epsilon(0.5) == math.inf
    assert groups.extend_curve([(0.0, 0.1)], 2).epsilon(0.3) == 0.0
    assert groups.extend_curve([(3.0, 1e-5)], 5).epsilon(1e-5) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "size"), list(itertools.product([0.7, 2.0], [2, 3])))
def test_one_unit_costs_what_it_costs_alone_and_more_cost_more(sigma: float, size: int) -> None:
    for event in (PoissonGaussian(0.1, sigma), FixedSizeGaussian(50, 5, sigma), DealtGaussian(sigma, 6)):
        alone = accountants.epsilon([Charge(event, 4)], 1e-5, ADD, "pld")
        assert bound(event, 4, 1e-5, 1) == pytest.approx(alone, rel=2e-3)
        assert size * alone < bound(event, 4, 1e-5, size) < bound(event, 4, 1e-5, size + 1)


@pytest.mark.parametrize(("units", "batch", "size"), [(4, 2, 2), (5, 2, 3), (5, 3, 2)])
def test_every_subset_of_a_few_units_is_below_the_pair(units: int, batch: int, size: int) -> None:
    """The group's gradients are 1, the others' -1: the largest distance. All batches are listed, before and after."""
    sigma = 1.3

    def mixture(members: int) -> dict[float, float]:
        values = [1.0] * (members - (units - size)) + [-1.0] * (units - size)
        sums = [sum(chosen) for chosen in itertools.combinations(values, batch)]
        return {total: sums.count(total) / len(sums) for total in sums}

    x_N = np.arange(-20, 20, 1e-3)
    with_N, without_N = (
        sum(weight * stats.norm.pdf(x_N, mean, sigma) for mean, weight in mixture(members).items())
        for members in (units, units - size)
    )
    event = FixedSizeGaussian(units, batch, sigma).together(size, ADD)
    assert event is not None
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        stated = accountants.delta([Charge(event, 1)], epsilon, ADD, "pld")
        exact = [
            np.maximum(p - math.exp(epsilon) * q, 0).sum() * 1e-3 for p, q in ((with_N, without_N), (without_N, with_N))
        ]
        assert max(exact) <= stated + 1e-7
        assert stated == pytest.approx(max(exact), abs=2e-4)


def test_two_dealt_units_are_below_the_extended_curve() -> None:
    """Two steps of an epoch, two units: A = ((X₁ + X₂)² - (1 - e^-μ²)(X₁² + X₂²))/4, by quadrature over both steps."""
    sigma, mu = 1.5, 1 / 1.5
    z_N = np.linspace(-9, 9, 1201)
    weight_N = stats.norm.pdf(z_N) * (z_N[1] - z_N[0])
    x_N = np.exp(mu * z_N - mu * mu / 2)
    first, second = np.meshgrid(x_N, x_N)
    ratio = ((first + second) ** 2 - -math.expm1(-mu * mu) * (first**2 + second**2)) / 4
    weights = np.outer(weight_N, weight_N)
    charges = [Charge(DealtGaussian(sigma, 2), 1)]
    one = accountants.epsilon(charges, 1e-6, ADD, "pld")
    curve = groups.extend_curve(accountants.profile(charges, ADD, "pld", groups.list_epsilons(one)), 2)
    for epsilon, stated in curve.list_points():
        g = math.exp(epsilon)
        exact = max((np.maximum(ratio - g, 0) * weights).sum(), (np.maximum(1 - g * ratio, 0) * weights).sum())
        if exact > 1e-7:
            assert exact <= stated * (1 + 1e-6)
            assert stated <= exact * 1.3 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "count", "size"), [(PoissonGaussian(0.089013, 3.0), 113, 2), (FixedSizeGaussian(600, 30, 4.0), 40, 3)]
)
def test_a_library_composes_the_same_mixtures(event: Event, count: int, size: int) -> None:
    from dp_accounting.pld import privacy_loss_distribution as library

    mixed = event.together(size, ADD)
    distribution = library.from_mixture_gaussian_mechanism(
        mixed.noise_multiplier,
        [j * mixed.shift for j in range(len(mixed.weights))],
        mixed.weights,
        value_discretization_interval=1e-3,
    )
    theirs = distribution.self_compose(count).get_epsilon_for_delta(1e-5)
    assert bound(event, count, 1e-5, size) == pytest.approx(theirs, rel=5e-3)


def test_units_that_are_replaced_or_blanked_are_a_chain() -> None:
    """A Gaussian is exact; a sampled one is never below k units of which each is removed, and another added."""
    assert bound(Gaussian(4.0), 1, 1e-5, 2, REPLACE) == pytest.approx(gdp.epsilon(1.0, 1e-5), rel=1e-6)
    assert bound(Gaussian(4.0), 1, 1e-5, 2, BLANK) == pytest.approx(gdp.epsilon(0.5, 1e-5), rel=1e-6)
    sampled = PoissonGaussian(0.05, 2.0)
    assert bound(sampled, 50, 1e-5, 2, BLANK) == bound(sampled, 50, 1e-5, 2)
    assert bound(sampled, 50, 1e-5, 2, REPLACE) > 2 * accountants.epsilon([Charge(sampled, 50)], 1e-5, REPLACE, "pld")


def test_data_sets_become_smaller_along_the_chain() -> None:
    """A smaller data set has a larger share in each batch of a fixed size; one with fewer units has no bound."""
    event = FixedSizeGaussian(100, 20, 3.0)
    assert event.among_fewer(3, ADD) == FixedSizeGaussian(97, 20, 3.0)
    assert event.among_fewer(3, REPLACE) == event
    assert FixedSizeGaussian(22, 20, 3.0).among_fewer(2, ADD) is None
    both = [Charge(FixedSizeGaussian(22, 20, 3.0), 1), Charge(PoissonLaplace(0.1, 2.0), 1)]
    assert groups.bound_groups(both, 1e-5, ADD, "pld", 2.0, (3,)) == ((3, math.inf),)


def test_a_tuned_run_becomes_smaller_with_its_runs() -> None:
    base = (Charge(FixedSizeGaussian(100, 20, 3.0), 5),)
    tuned = SelectedBest("fixed", 3.0, None, base)
    assert tuned.among_fewer(2, ADD) == SelectedBest("fixed", 3.0, None, (Charge(FixedSizeGaussian(98, 20, 3.0), 5),))
    tight = SelectedBest("fixed", 3.0, None, (Charge(FixedSizeGaussian(22, 20, 3.0), 5),))
    assert tight.among_fewer(2, ADD) is None


def test_events_of_several_kinds_share_one_chain() -> None:
    charges = [
        Charge(PoissonGaussian(0.05, 3.0), 40),
        Charge(TruncatedPoissonGaussian(0.05, 3.0, 1000, 90), 10),
        Charge(PoissonLaplace(0.1, 4.0), 3),
    ]
    one = accountants.epsilon(charges, 1e-5, ADD, "pld")
    (two,) = groups.bound_groups(charges, 1e-5, ADD, "pld", one, (2,))
    assert 2 * one < two[1] < 4 * one


@given(st.floats(0.01, 2), SIZES)
def test_the_best_guess_about_several_is_never_below_the_truth(mu: float, size: int) -> None:
    truth = float(mpmath.ncdf(mpmath.mpf(size) * mu / 2))
    exact = [(0.0, gdp.delta(groups.extend_gaussian(mu, size), 0.0))]
    assert truth <= risk.best_guess(exact, 0.5) * (1 + 1e-9) <= truth * (1 + 2e-5)
    by_points = groups.extend_curve(groups.list_gaussian_points(mu, 6.0), size).list_points()
    assert truth <= risk.best_guess(by_points, 0.5) * (1 + 1e-9)
