"""Stages put to dp-accounting: by the cross-check, and composed with its own distributions, case by case."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from scipy import stats

from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.library_sums import distribution_of_range, divergences_of_range
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)
from dprecipe.privacy.stages.bounded_range import bounded_range_curve
from dprecipe.privacy.stages.events import NoisyCovariance, NoisyMoments, NoisyQuantile, PartitionSelection

ADD, REPLACE, ZERO = Neighbouring
GAUSSIANS = [Charge(NoisyMoments(3, 1.0, 1.0, 0.4, 20.0), 1), Charge(NoisyCovariance(5, 15.0), 1)]
QUANTILES = [Charge(NoisyQuantile(0.3, 20.0), 2), Charge(NoisyQuantile(0.5, 9.0), 1)]
ITEMS = [Charge(PartitionSelection(3, 150.0, 20.0), 1)]
TRAINING = [Charge(PoissonGaussian(0.02, 1.5), 200)]


@pytest.mark.parametrize("relation", list(Neighbouring))
@pytest.mark.parametrize(
    "charges",
    [
        pytest.param([*GAUSSIANS, *ITEMS], id="gaussians"),
        pytest.param(QUANTILES, id="quantiles"),
        pytest.param([Charge(PoissonLaplace(0.01, 2.0), 100), *ITEMS, *GAUSSIANS], id="laplace"),
        pytest.param([*TRAINING, *GAUSSIANS, *QUANTILES, *ITEMS], id="all", marks=pytest.mark.slow),
        pytest.param([*TRAINING, Charge(NoisyQuantile(0.3, 1.5), 20)], id="many", marks=pytest.mark.slow),
        pytest.param(
            [*TRAINING, *ITEMS, Charge(PartitionSelection.with_leak(16, 1e-6, 30.0), 2)],
            id="vocabularies",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [Charge(TruncatedPoissonGaussian(0.01, 1.5, 10_000, 140), 100), *QUANTILES, *ITEMS],
            id="capped",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_library_agrees(charges, relation):
    claim = accountants.epsilon_answer(charges, 1e-5, relation, "pld")
    theirs = cross_check.ask_library(charges, 1e-5, relation)
    assert theirs.name == f"dp_accounting.{claim.accountant}"
    assert theirs.epsilon == pytest.approx(claim.value, rel=1e-3)


def test_batches_of_one_size_have_no_bound_where_a_unit_is_added():
    charges = [Charge(FixedSizeGaussian(60_000, 256, 4.0), 300), *QUANTILES, *ITEMS]
    assert (
        accountants.epsilon(charges, 1e-5, ADD, "pld")
        == math.inf
        == cross_check.ask_library(charges, 1e-5, ADD).epsilon
    )
    claim = accountants.epsilon(charges, 1e-5, REPLACE, "pld")
    assert cross_check.ask_library(charges, 1e-5, REPLACE).epsilon == pytest.approx(claim, rel=1e-3)


def test_quantiles_beside_other_noise_are_left_to_renyi():
    charges = [Charge(PoissonLaplace(0.01, 2.0), 100), *QUANTILES]
    for relation in (ADD, REPLACE):
        theirs = cross_check.ask_library(charges, 1e-5, relation)
        assert theirs.name == "dp_accounting.rdp"
        assert theirs.epsilon == pytest.approx(accountants.epsilon(charges, 1e-5, relation, "rdp"), rel=2e-3)


def test_a_leak_above_delta_has_no_epsilon():
    charges = [*TRAINING, Charge(PartitionSelection.with_leak(4, 2e-5, 20.0), 1)]
    assert (
        accountants.epsilon(charges, 1e-5, ADD, "pld")
        == math.inf
        == cross_check.ask_library(charges, 1e-5, ADD).epsilon
    )


def test_the_library_composes_each_case_to_the_same():
    """A leak is two outcomes of its own; nothing of this package is in these distributions."""
    step, tail = 1e-4, 1e-15
    rest = library.from_gaussian_mechanism(1.5, value_discretization_interval=step, sampling_prob=0.02)
    rest = rest.self_compose(200, tail)
    (event,) = (charge.event for charge in ITEMS)
    message = stats.norm.sf(149.0, scale=20.0 * math.sqrt(3))
    worst = 0.0
    for unique in range(4):
        whole = rest
        if unique < 3:
            one = library.from_gaussian_mechanism(
                event.noise_scale / math.sqrt(3 - unique), value_discretization_interval=step
            )
            whole = whole.compose(one, tail)
        if unique:
            kept = unique * math.log1p(-message)
            leak = library.from_two_probability_mass_functions(
                {"nothing": 0.0},
                {"nothing": kept, "told": math.log(-math.expm1(kept))},
                value_discretization_interval=step,
                symmetric=False,
            )
            whole = whole.compose(leak, tail)
        worst = max(worst, whole.get_epsilon_for_delta(1e-5))
    assert accountants.epsilon([*TRAINING, *ITEMS], 1e-5, ADD, "pld") == pytest.approx(worst, rel=5e-4)


@pytest.mark.parametrize("largest", [0.05, 1.0, 6.0])
def test_a_choice_of_bounded_range_is_told_by_other_formulas(largest):
    result = distribution_of_range(largest, 1e-3)
    for epsilon in (0.0, 0.31 * largest, 0.9 * largest):
        delta = math.expm1((epsilon - largest) / 2) ** 2 / -math.expm1(-largest)
        assert result.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-3)
    orders = [1.5, 2.0, 8.0, 40.0]
    assert divergences_of_range(largest, np.array(orders)) == pytest.approx(
        bounded_range_curve(largest, orders), rel=1e-5
    )


def test_unsampled_gaussians_stay_exact():
    charges = [*GAUSSIANS, Charge(Gaussian(4.0), 1)]
    for relation in Neighbouring:
        claim = accountants.epsilon_answer(charges, 1e-5, relation, "pld")
        assert claim.accountant == "gdp"
        assert cross_check.ask_library(charges, 1e-5, relation).epsilon == pytest.approx(claim.value, rel=5e-4)
