"""What other accountants say: figures of papers, composition against enumeration, and no row below the claim."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dprecipe.cli.init import make_starter
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold
from dprecipe.planning.make import plan
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.comparison import (
    AccountantRow,
    compare_accountants,
    compose_optimally,
    compose_strongly,
    print_strong_composition,
)
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import FixedSizeGaussian, Gaussian, PoissonGaussian, PoissonLaplace
from dprecipe.privacy.stages.events import NoisyQuantile
from dprecipe.recipe.read import read_text

ABADI = (Charge(PoissonGaussian(0.01, 4.0), 10_000),)


def rows_of(charges: tuple[Charge, ...], relation: str = "add_or_remove_one") -> dict[str, AccountantRow]:
    return {row.accountant: row for row in compare_accountants(charges, 1e-5, Neighbouring(relation))}


def test_the_example_of_abadi_as_its_paper_prints_it() -> None:
    rows = rows_of(ABADI)
    assert rows["moments_accountant"].epsilon == pytest.approx(1.2585747412527521, rel=2e-5)  # "1.26"
    assert rows["moments_accountant"].note == "at λ = 19 of 1 to 32"
    assert rows["strong_composition_as_printed"].epsilon == pytest.approx(9.3391, abs=5e-5)  # "9.34"
    assert rows["rdp_classic"].epsilon == pytest.approx(1.2585747412527875, rel=2e-5)
    assert rows["rdp"].epsilon == pytest.approx(1.0354900660362965, rel=2e-5)
    assert rows["pld"].epsilon == pytest.approx(0.9469, rel=2e-4)
    assert [row.accountant for row in rows.values() if not row.holds] == ["strong_composition_as_printed"]


def test_strong_composition_with_amplification_that_holds() -> None:
    single = math.sqrt(2 * math.log(1.25 * 2 * 10_000 * 0.01 / 1e-5)) / 4
    sampled = math.log1p(0.01 * math.expm1(single))
    assert compose_strongly([(sampled, 10_000)], 5e-6) == pytest.approx(26.784577569021984, rel=1e-12)
    assert compose_strongly([(sampled, 4_000), (sampled, 6_000)], 5e-6) == pytest.approx(26.784577569021984, rel=1e-12)
    assert print_strong_composition(0.01, 4.0, 10_000, 1e-5) == pytest.approx(9.3391, abs=5e-5)


@pytest.mark.parametrize("epsilon", [0.03, 0.4, 2.5])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_optimal_composition_is_that_of_randomised_responses(epsilon: float, count: int) -> None:
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    outcomes = list(itertools.product((0, 1), repeat=count))
    ours = np.array([math.prod(p if bit == 0 else 1 - p for bit in outcome) for outcome in outcomes])
    theirs = np.array([math.prod(p if bit == 1 else 1 - p for bit in outcome) for outcome in outcomes])
    for share in (0.0, 0.1, 0.35, 0.5, 0.77, 0.95):
        at = share * count * epsilon
        delta = float(np.maximum(ours - math.exp(at) * theirs, 0).sum())
        assert compose_optimally(epsilon, count, delta) == pytest.approx(at, rel=1e-5, abs=1e-5)
        assert compose_optimally(epsilon, count, delta * 0.99) > at


def test_optimal_composition_of_many() -> None:
    epsilon, count, at = 0.02, 5_000, 3.3
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    wrong = np.arange(count + 1)
    seen = (count - 2 * wrong) * epsilon > at
    ours, theirs = (stats.binom.pmf(wrong[seen], count, x) for x in (1 - p, p))
    delta = math.fsum(ours) - math.exp(at) * math.fsum(theirs)
    assert compose_optimally(epsilon, count, delta) == pytest.approx(at, rel=1e-6)
    assert compose_optimally(epsilon, count, delta) < compose_strongly([(epsilon, count)], delta) < epsilon * count


@pytest.mark.parametrize(
    ("epsilon", "count", "delta", "value"),
    [
        (0.5, 4, 1e-12, 2.0),  # below the chance that all answers are true
        (1000.0, 3, 1e-5, 3000.0),
        (math.inf, 3, 1e-5, math.inf),
        (0.0, 3, 1e-5, 0.0),
        (1e-7, 100, 0.1, 0.0),
    ],
)
def test_the_ends_of_composition(epsilon: float, count: int, delta: float, value: float) -> None:
    assert compose_optimally(epsilon, count, delta) == pytest.approx(value, rel=1e-6)
    assert compose_strongly([(epsilon, count)], delta) >= value


@pytest.mark.parametrize("relation", list(Neighbouring))
@pytest.mark.parametrize(
    "charges",
    [
        ABADI,
        (Charge(PoissonGaussian(0.02, 1.0), 400), Charge(PoissonGaussian(0.01, 0.8), 50)),
        (Charge(Gaussian(20.0), 100),),
        (Charge(Gaussian(8.0), 3), Charge(PoissonLaplace(0.05, 4.0), 200), Charge(NoisyQuantile(0.5, 3.0), 1)),
        (Charge(FixedSizeGaussian(1000, 100, 6.0), 50),),
        (Charge(NoisyMax("laplace", 40.0), 100),),
    ],
)
def test_no_row_is_below_the_tightest_accountant(charges: tuple[Charge, ...], relation: Neighbouring) -> None:
    claim = accountants.epsilon(charges, 1e-5, relation, "pld")
    rows = rows_of(charges, relation)
    assert len(rows) == 9
    stated = [row for row in rows.values() if row.holds and row.epsilon is not None]
    assert len(stated) >= 5 if math.isfinite(claim) else not stated
    for row in stated:
        assert (row.epsilon or 0.0) >= claim * (1 - 1e-9), row


def test_a_theorem_that_does_not_apply_says_why() -> None:
    differ = rows_of((Charge(Gaussian(20.0), 10), Charge(Gaussian(30.0), 10)))
    assert differ["optimal_composition"].epsilon is None
    assert "differ" in differ["optimal_composition"].note
    assert differ["strong_composition"].epsilon is not None
    one = rows_of((Charge(Gaussian(4.0), 1),))
    assert one["basic_composition"].epsilon == one["gdp"].epsilon == one["pld"].epsilon
    assert one["strong_composition"].epsilon is None
    assert "one event" in one["strong_composition"].note
    replaced = rows_of(ABADI, "replace_one")
    assert replaced["strong_composition_as_printed"].epsilon is None
    assert rows_of(ABADI)["gdp"].epsilon is None


def test_what_a_filter_decides_is_no_fixed_list() -> None:
    votes = (Charge(NoisyThreshold(150.0), 640), Charge(NoisyMax("gaussian", 40.0), 341))
    for charges in (votes, (*votes, Charge(FilterRest(30.0), 1))):
        rows = rows_of(charges)
        for name, row in rows.items():
            fixed = name.endswith(("composition", "printed"))
            assert (row.epsilon is None) == fixed, name
            assert ("in advance" in row.note) == fixed


def test_a_release_that_does_not_compose_has_its_own_bounds_alone() -> None:
    descent = plan(read_text(make_starter("pnsgd", "digits", "descent")))
    rows = rows_of(descent.events, descent.budget.neighbouring)
    stated = {name for name, row in rows.items() if row.epsilon is not None}
    assert {"basic_composition", "rdp", "rdp_classic", "pld"} <= stated <= {*rows} - {"moments_accountant"}
    assert not {"strong_composition", "optimal_composition", "strong_composition_as_printed"} & stated


def test_nothing_costs_nothing() -> None:
    rows = rows_of(())
    assert {row.epsilon for row in rows.values() if row.epsilon is not None} == {0.0}
