"""The claim's numbers against closed forms."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
from scipy.stats import norm

from dprecipe.contract.facts import PrivacyUnit
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import PlanRefused, RecipeError
from dprecipe.privacy import gdp, groups
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.release import claim

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle & Wang 2018, Theorem 8, by scipy."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("relation", "moved"), [(ADD, 1.0), (REPLACE, 2.0)])
def test_mu_of_unsampled_noise_is_exact(relation: Neighbouring, moved: float) -> None:
    bound = claim.find_gaussian_bound([Charge(Gaussian(8.0), 50)], relation, 3.0)
    assert bound is not None
    assert bound.mu == pytest.approx(moved * math.sqrt(50) / 8, rel=1e-5)
    assert bound.mu >= moved * math.sqrt(50) / 8
    assert bound.to_epsilon is None


def test_mu_of_sampled_noise_bounds_the_profile_between_the_points_of_its_grid() -> None:
    from dprecipe.privacy import accountants

    charges = [Charge(PoissonGaussian(0.05, 1.1), 200)]
    bound = claim.find_gaussian_bound(charges, ADD, 2.5)
    assert bound is not None
    assert bound.to_epsilon == 5.0
    for i in range(97):
        epsilon = 5.0 * i / 96.5
        ((_, delta),) = accountants.profile(charges, ADD, "rdp", [epsilon])
        tight = accountants.delta(charges, epsilon, ADD, "pld")
        assert tight <= delta * (1 + 1e-9)
        assert tight <= gaussian_delta(bound.mu, epsilon) * (1 + 1e-9)
    without_sampling = math.sqrt(200) / 1.1
    assert bound.mu < without_sampling / 5


@pytest.mark.parametrize("rate", [1e-4, 0.05, 0.5])
def test_mu_is_the_largest_over_all_points_of_the_grid(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from dprecipe.privacy import accountants

    charges = [Charge(PoissonGaussian(rate, 1.1), 20)]
    bound = claim.find_gaussian_bound(charges, ADD, 2.5)
    grid = groups.list_epsilons(2.5)
    deltas = [delta for _, delta in accountants.profile(charges, ADD, "pld", grid)]
    largest = max(gdp.mu_for(right, delta) for right, delta in zip(grid[1:], deltas, strict=False))
    monkeypatch.setattr(claim, "_largest_mu", lambda points: largest)
    assert claim.find_gaussian_bound(charges, ADD, 2.5) == bound


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.5, 0.99, claim.MAX_DELTA])
def test_the_margin_covers_the_rounding_of_mu(epsilon: float, delta: float) -> None:
    """In 60 digits: a Gaussian of the stated μ has a δ of at least that of the profile's point."""
    with mpmath.workdps(60):
        mu, e = mpmath.mpf(gdp.mu_for(epsilon, delta)) * mpmath.mpf(claim.MU_MARGIN), mpmath.mpf(epsilon)
        exact = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
        assert exact >= mpmath.mpf(delta)


def test_no_mu_of_a_run_that_protects_nobody() -> None:
    charges = [Charge(PoissonGaussian(0.9, 0.2), 20)]
    assert claim.find_gaussian_bound(charges, ADD, 400.0) is None


def test_no_mu_without_a_claim() -> None:
    charges = [Charge(PoissonGaussian(0.05, 1.1), 200)]
    assert claim.find_gaussian_bound([], ADD, 0.0) is None
    assert claim.find_gaussian_bound(charges, ADD, math.inf) is None


def test_the_profile_contains_the_claim(finished: Any) -> None:
    stated = claim.make_claim(finished.plan, claim.compute_numbers(finished.plan, finished.ledger.charges), False)
    (delta,) = [point.delta for point in stated.profile if point.epsilon == stated.epsilon]
    assert delta <= stated.delta
    deltas = [point.delta for point in stated.profile]
    assert deltas == sorted(deltas, reverse=True)


def test_three_accountants_answer_and_two_are_independent(finished: Any) -> None:
    rows = claim.compute_numbers(finished.plan, finished.ledger.charges).accounting
    assert [row.role for row in rows] == ["claim", "alternative", "cross_check"]
    assert len({row.name for row in rows}) == 3
    assert rows[2].epsilon == pytest.approx(rows[0].epsilon, rel=1e-3)


def unit_of(plan: Plan) -> PrivacyUnit:
    return mechanism_of(plan.mechanism).certificate.describe_unit(plan)


def test_a_unit_is_named_and_bounded(plan_of: Any) -> None:
    words = claim.write_claim(1.0, 1e-6, REPLACE, "user_id", ["final weights"], False)
    assert "replacing one user_id by another" in words
    unit = unit_of(plan_of())
    assert (unit.name, unit.max_records) == ("record", 1)


def test_the_columns_name_is_quoted_and_what_it_tells_apart_is_declared(plan_of: Any) -> None:
    source = "data.train={source: npz, path: a.npz, shape: [8, 8], classes: 10}"
    plan = plan_of(overrides=(source, "data.unit={column: patient id, max_records: 3}"))
    unit = unit_of(plan)
    assert unit.name == plan.guarantee.unit == "group of records with the same 'patient id'"
    assert unit.column == "patient id"
    assert "records with the same 'patient id' are sampled together" in unit.enforced_by
    assert {a.id: a.checked_by for a in plan.assumptions}["unit"] == "declaration"
    assert "unit" not in {a.id for a in plan_of().assumptions}
    # A column may be called what the sentence calls what it protects by default.
    named = plan_of(overrides=(source, "data.unit={column: record, max_records: 3}"))
    assert unit_of(named).name == "group of records with the same 'record'"


def test_a_unit_that_the_recipe_names_is_called_so_and_the_claim_says_what_it_is(plan_of: Any, facts_of: Any) -> None:
    source = "data.train={source: npz, path: a.npz, shape: [8, 8], classes: 10}"
    plan = plan_of(overrides=(source, "data.unit={column: patient id, name: patient, max_records: 3}"))
    unit = unit_of(plan)
    assert (unit.name, unit.column, plan.guarantee.unit) == ("patient", "patient id", "patient")
    words = claim.make_claim(plan, claim.compute_numbers(plan, plan.events), insecure=False).sentence
    assert "adding or removing one patient:" in words
    assert words.endswith(" Here one patient is all records with the same 'patient id'.")
    assert "all records of one patient have the same value" in {a.id: a.text for a in plan.assumptions}["unit"]
    unnamed = plan_of(overrides=(source, "data.unit={column: patient id, max_records: 3}"))
    assert "name" not in unnamed.resolved["data"]["unit"]  # a recipe that says none has the digest that it had
    assert plan.digest != unnamed.digest


@pytest.mark.parametrize(
    "name", ["person or all", "record", "Records", "patient (ε = 0.01)", "", "x" * 31, "a\u0301b-"]
)
def test_the_name_of_a_unit_is_one_word(name: str, plan_of: Any) -> None:
    source = "data.train={source: npz, path: a.npz, shape: [8, 8], classes: 10}"
    with pytest.raises((PlanRefused, RecipeError)) as refused:
        plan_of(overrides=(source, f'data.unit={{column: who, name: "{name}", max_records: 3}}'))
    assert [finding.code for finding in refused.value.findings] == ["R308" if name else "R108"]


@pytest.mark.parametrize("column", ["person.       ε spent  0.01", "person (in truth ε = 0.01)", "person\\nverified"])
def test_a_columns_name_says_nothing_in_the_claim(column: str, plan_of: Any) -> None:
    source = "data.train={source: npz, path: a.npz, shape: [8, 8], classes: 10}"
    with pytest.raises(PlanRefused) as refused:
        plan_of(overrides=(source, f'data.unit={{column: "{column}", max_records: 3}}'))
    assert [finding.code for finding in refused.value.findings] == ["R308"]


def test_who_takes_part_in_every_step_is_not_told_to_be_sampled(plan_of: Any) -> None:
    every = "mechanism.sampling={scheme: full_batch}"
    noise = "mechanism.noise.multiplier=20"
    assert "takes part in every step" in unit_of(plan_of(overrides=(every, noise, "training.steps=5"))).enforced_by
    assert "sampled by itself" in unit_of(plan_of()).enforced_by
