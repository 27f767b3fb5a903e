"""Stages before the runs: one ε for both, against compositions by other means; and what it would be wrong to claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from dprecipe.privacy import accountants, cross_check, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.privacy.stages.events import NoisyCovariance, NoisyMoments, NoisyQuantile, PartitionSelection
from dprecipe.privacy.tuning import recheck
from dprecipe.privacy.tuning.events import SelectedBest
from dprecipe.privacy.tuning.profile import selected_curves
from dprecipe.privacy.tuning.runs import NegativeBinomialRuns

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
DELTA = 1e-5
TRAINING = (Charge(PoissonGaussian(0.05, 1.5), 60),)
TUNED = Charge(SelectedBest("negative_binomial", 8.0, 0.5, TRAINING), 1)
MOMENTS, COVARIANCE = Charge(NoisyMoments(6, 1.0, 1.0, 0.0, 15.0), 1), Charge(NoisyCovariance(6, 12.0), 1)
QUANTILES = Charge(NoisyQuantile(0.02, 20.0), 12)
STAGES = (QUANTILES, MOMENTS, COVARIANCE)


def epsilon(*charges: Charge, relation: Neighbouring = ADD) -> float:
    return accountants.epsilon(charges, DELTA, relation, "pld")


def composed_delta(shift: float, at: float) -> float:
    """δ of Gaussian stages of μ = `shift` and the tuned run, by quadrature: the mean over the stages' losses l of the
    tuned run's δ at ε - l. Of both directions the larger."""
    removed, added = selected_curves(TRAINING, TUNED.event.runs, ADD)  # type: ignore[attr-defined]
    z = np.linspace(-12, 12, 40_001)
    masses = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    left = at - (shift * z + shift * shift / 2)

    def tuned(curve: object, reverse: object) -> np.ndarray:
        above, below = np.maximum(left, 0.0), np.minimum(left, 0.0)
        mirrored = -np.expm1(below) + np.exp(below) * reverse.at(-below)  # type: ignore[attr-defined]
        return np.where(left >= 0, curve.at(above), mirrored)  # type: ignore[attr-defined]

    return max(float(masses @ tuned(removed, added)), float(masses @ tuned(added, removed)))


@pytest.mark.slow
def test_one_epsilon_is_that_of_an_independent_composition() -> None:
    together = epsilon(*STAGES, TUNED)
    library = cross_check.ask_library((*STAGES, TUNED), DELTA, ADD)
    assert library.name == "dp_accounting.pld"
    assert together == pytest.approx(library.epsilon, rel=3e-3)
    parts = [epsilon(TUNED), epsilon(QUANTILES), epsilon(MOMENTS), epsilon(COVARIANCE)]
    assert max(parts) < together < math.fsum(parts)


def test_gaussian_stages_beside_it_are_composed_as_by_quadrature() -> None:
    shift = math.hypot(*(1 / charge.event.multipliers[0] for charge in (MOMENTS, COVARIANCE)))
    together = epsilon(MOMENTS, COVARIANCE, TUNED)
    assert composed_delta(shift, together) <= DELTA
    assert composed_delta(shift, together * (1 - 2e-3)) > DELTA


def test_items_that_only_one_has_are_composed_with_it() -> None:
    items = Charge(PartitionSelection.with_leak(1, 1e-6, 20.0), 1)
    together = epsilon(items, TUNED)
    assert epsilon(TUNED) < together < epsilon(TUNED) + epsilon(items)


@pytest.mark.slow
def test_items_and_runs_are_what_the_library_finds() -> None:
    items = Charge(PartitionSelection.with_leak(1, 1e-6, 20.0), 1)
    together = epsilon(items, TUNED)
    assert cross_check.ask_library([items, TUNED], DELTA, ADD).epsilon == pytest.approx(together, rel=3e-3)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_released_once_a_stage_costs_less_than_drawn_anew_by_every_run(relation: Neighbouring) -> None:
    inside = Charge(SelectedBest("negative_binomial", 8.0, 0.5, (COVARIANCE, MOMENTS, *TRAINING)), 1)
    outside = epsilon(COVARIANCE, MOMENTS, TUNED, relation=relation)
    assert epsilon(TUNED, relation=relation) < outside < epsilon(inside, relation=relation)


def test_what_leaves_the_stage_out_is_refuted_by_an_attack() -> None:
    """A stage and runs of Gaussian noise, the largest result winning: δ by quadrature, exactly. The claim holds; that
    of the tuned run alone does not."""
    stage, base = 1.0, 0.3
    runs = NegativeBinomialRuns.with_mean(1.0, 5.0)
    best = Charge(SelectedBest("negative_binomial", 5.0, 1.0, (Charge(Gaussian(1 / base), 1),)), 1)
    y = np.linspace(-12, 13, 20_001)

    def density(mean: float) -> np.ndarray:
        better = special.ndtr(mean - y)
        return runs.density(better, 1 - better) * np.exp(-((y - mean) ** 2) / 2) / math.sqrt(2 * math.pi)

    with_unit, without = density(base), density(0.0)
    loss = np.log(with_unit) - np.log(without)

    def attack(at: float) -> float:
        return float(np.sum(with_unit * [_signed_delta(stage, at - one) for one in loss]) * (y[1] - y[0]))

    assert np.sum(with_unit) * (y[1] - y[0]) == pytest.approx(1, abs=1e-9)
    claimed, left_out = epsilon(Charge(Gaussian(1 / stage), 1), best), epsilon(best)
    assert attack(claimed) <= DELTA < attack(left_out)
    assert attack(0.75 * claimed) > DELTA


def _signed_delta(mu: float, at: float) -> float:
    """Of a Gaussian mechanism, at ε of either sign."""
    return gdp.delta(mu, at) if at >= 0 else -math.expm1(at) + math.exp(at) * gdp.delta(mu, -at)


def test_the_relation_of_a_stage_is_that_of_the_runs() -> None:
    assert epsilon(*STAGES, TUNED, relation=REPLACE) > epsilon(*STAGES, TUNED) * 1.2


def test_the_library_is_given_a_pair_of_distributions() -> None:
    """Beside a stage, a cheap tuned run costs little. Losses of a pair have masses that add up to 1."""
    cheap = SelectedBest("negative_binomial", 3.0, 0.5, (Charge(PoissonGaussian(0.0445, 20.0), 6),))
    found = recheck.selected_distribution(cheap.cross_check(), ADD, DELTA, 1e-4)
    for losses in (found._pmf_remove.to_dense_pmf(), found._pmf_add.to_dense_pmf()):
        assert losses._probs.sum() + losses._infinity_mass == pytest.approx(1, abs=1e-6)
    stage = Charge(Gaussian(10.0), 1)
    library = cross_check.ask_library([stage, Charge(cheap, 1)], DELTA, ADD).epsilon
    assert library == pytest.approx(epsilon(stage, Charge(cheap, 1)), rel=1e-3)
