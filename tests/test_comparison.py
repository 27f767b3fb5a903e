"""Standings: what is compared with what, and the arithmetic of means, intervals and tests."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dprecipe.comparison import (
    ClaimTerms,
    Contender,
    PairedTest,
    adjust_by_holm,
    compare_all,
    draw_standing,
    find_interval,
)
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import accountants, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.recipe.read import read_text
from dprecipe.release.figures import render_svg

TERMS = ClaimTerms(Neighbouring("add_or_remove_one"), "record", 1)
A, B = (0.91, 0.89, 0.94, 0.90, 0.92), (0.93, 0.90, 0.96, 0.93, 0.93)


@pytest.fixture(scope="module")
def charge() -> Charge:
    """Gaussian steps on whole batches, whose δ(ε) is known in closed form."""
    text = "recipe: dprecipe/v1\nname: a\ndata: {train: {source: digits, split: train}, size: 1437}\n"
    text += "model: {kind: logistic_regression}\nmechanism: {kind: dpsgd, clip: {norm: 1.0}, noise: {family: gaussian, "
    text += "multiplier: 4.0}, sampling: {scheme: full_batch}}\nbudget: {epsilon: auto, delta: 1e-5}\n"
    text += "training: {steps: 16, optimizer: {kind: sgd, lr: 0.5}}\n"
    (result,) = make_plan(read_text(text)).events
    return result


@pytest.fixture
def run(charge: Charge) -> Contender:
    epsilon = accountants.epsilon([charge], 1e-5, Neighbouring("add_or_remove_one"), "pld")
    return Contender(
        "a", "runs/a", False, "dpsgd", TERMS, epsilon, 1e-5, "pld", (charge,), "m1", 0, {"accuracy": 0.9}, "t", (), 60.0
    )


def seeds_of(run: Contender, scores: tuple[float, ...], **changes: Any) -> list[Contender]:
    return [replace(run, seed=i, scores={"accuracy": score}, **changes) for i, score in enumerate(scores)]


def test_runs_that_differ_in_their_seed_are_one_row_with_its_interval(run: Contender) -> None:
    (standing,) = compare_all(seeds_of(run, A))
    (row,) = standing.rows
    assert row.score is not None
    assert row.score.half_width is not None
    assert math.isclose(row.score.mean, 0.912)
    # 0.01923538… = standard deviation; 2.7764451 = the quantile of t with 4 degrees of freedom, from a table
    assert math.isclose(row.score.half_width, 2.7764451 * 0.019235384 / math.sqrt(5), rel_tol=1e-6)
    assert row.seconds is not None
    assert standing.tests == ()


def test_a_score_stands_beside_its_baseline_and_unequal_classes_have_one_of_their_own(run: Contender) -> None:
    (standing,) = compare_all([replace(run, baselines={"accuracy": 0.5})])
    assert (standing.metric, standing.rows[0].baseline) == ("accuracy", 0.5)
    scores = {"accuracy": 0.9368, "balanced_accuracy": 0.512, "auc": 0.607}
    unequal = replace(run, scores=scores, baselines={"accuracy": 0.9356, "balanced_accuracy": 0.5, "auc": 0.5})
    (standing,) = compare_all([unequal, replace(unequal, seed=1)])
    assert (standing.metric, standing.rows[0].baseline) == ("balanced_accuracy", 0.5)
    (standing,) = compare_all([unequal, replace(unequal, method="m2", scores={"accuracy": 0.9})])
    assert standing.metric == "accuracy"
    (standing,) = compare_all([unequal, replace(unequal, seed=1, baselines={"balanced_accuracy": 0.25})])
    assert standing.rows[0].baseline is None


def test_a_paired_test_is_that_of_the_differences(run: Contender) -> None:
    (standing,) = compare_all([*seeds_of(run, A), *seeds_of(run, B, method="m2", name="b")])
    (test,) = standing.tests
    assert test.seeds == 5
    assert test.difference is not None
    # differences 0.02, 0.01, 0.02, 0.03, 0.01: mean 0.018, deviation 0.00836660, t = 4.8107024, p = 0.0085764
    assert math.isclose(test.difference.mean, 0.018)
    assert test.p == pytest.approx(0.0085763, rel=1e-3)


def test_p_values_are_adjusted_for_all_of_them_together() -> None:
    tests = [PairedTest("a", "b", 2, None, p, "") for p in (0.01, 0.04, None, 0.03)]
    assert [test.p for test in adjust_by_holm(tests)] == pytest.approx([0.03, 0.06, None, 0.06])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tested_on": "other"}, "different records"),
        ({"seed": 3}, "same seed"),
        ({"scores": {"accuracy": 0.9}}, ""),
    ],
)
def test_what_cannot_be_paired_is_not_tested(changes: dict[str, Any], reason: str, run: Contender) -> None:
    first = seeds_of(run, A[:3])
    second = seeds_of(run, B[:3], method="m2", name="b")
    if reason:
        second = [replace(each, **changes) for each in second]
    (standing,) = compare_all([*first, *second])
    (test,) = standing.tests
    assert (test.p is None) is bool(reason)
    assert reason in test.reason


def test_fewer_than_two_common_seeds_and_equal_differences_have_no_test(run: Contender) -> None:
    (standing,) = compare_all([run, replace(run, method="m2", name="b")])
    assert standing.tests[0].reason == "fewer than two seeds in common"
    (standing,) = compare_all([*seeds_of(run, (0.5, 0.75)), *seeds_of(run, (0.25, 0.5), method="m2", name="b")])
    assert standing.tests[0].reason == "all differences are equal"
    (standing,) = compare_all([*seeds_of(run, (0.7, 0.9)), *seeds_of(run, (0.8, 1.0), method="m2", name="b")])
    assert standing.tests[0].reason == "all differences are equal", "0.8 - 0.7 is 1.0 - 0.9 but for rounding"
    assert standing.tests[0].p is None


@pytest.mark.parametrize(
    "terms",
    [
        ClaimTerms(Neighbouring("replace_one"), "record", 1),
        ClaimTerms(Neighbouring("add_or_remove_one"), '"patient_id"', 1),
        ClaimTerms(Neighbouring("add_or_remove_one"), "record", 2),
    ],
)
def test_different_claims_have_standings_of_their_own(terms: ClaimTerms, run: Contender) -> None:
    result = compare_all([run, replace(run, terms=terms, method="m2")])
    assert [standing.terms for standing in result] == [TERMS, terms]
    assert all(standing.tests == () for standing in result)


def test_delta_is_converted_by_the_events_and_never_below_the_truth(run: Contender) -> None:
    strict = replace(run, method="m2", name="b", delta=1e-7, epsilon=9.0)
    (standing,) = compare_all([run, strict])
    assert standing.delta == 1e-7
    converted = next(row for row in standing.rows if row.name == "a").epsilon
    assert converted > run.epsilon
    mu = 1.0  # 16 steps of multiplier 4: sqrt(16)/4, whose δ(ε) is known in closed form
    assert gdp.delta(mu, converted) <= 1e-7 * (1 + 1e-9)
    assert gdp.delta(mu, converted * 0.999) > 1e-7
    assert run.epsilon_at(1e-5) == run.epsilon
    assert run.epsilon_at(1e-3) < run.epsilon
    (standing,) = compare_all([run, strict], delta=1e-5)
    assert next(row for row in standing.rows if row.name == "a").epsilon == run.epsilon


def test_a_single_value_has_no_interval() -> None:
    assert find_interval([]) is None
    single = find_interval([0.5])
    assert single is not None
    assert single.half_width is None


def test_a_name_brings_no_markup_into_the_drawing(run: Contender) -> None:
    evil = replace(run, place="<script>$x$&", method="m2")
    (standing,) = compare_all([run, evil])
    assert any("<script>" in row.name for row in standing.rows)
    svg = render_svg("compare", lambda axes: draw_standing(axes, standing))
    assert "script>" not in svg
    assert "ε at δ = 1e-05" in svg
