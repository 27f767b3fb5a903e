"""What `dprecipe votes` works out: the same figures as a run's own analysis and other plans of the recipe give."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.commands import forecast, simulate
from dprecipe.mechanisms.pate.commands import forecast as module
from dprecipe.mechanisms.pate.commands.forecast import forecast_plan
from dprecipe.mechanisms.pate.commands.forecast_document import Forecast
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.schema import Pate
from dprecipe.mechanisms.pate.theory import vote_analysis, votes
from dprecipe.mechanisms.pate.train.analysis import voting_of
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text

FINE = (Path(__file__).parents[3] / "golden" / "rules" / "fine-pate.yaml").read_text("utf-8")
GNMAX = "mechanism.aggregator={kind: gnmax, noise: {family: gaussian, multiplier: 40}}"
LNMAX = "mechanism.aggregator={kind: lnmax, noise: {family: laplace, multiplier: 40}}"
INTERACTIVE = (
    "mechanism.aggregator={kind: interactive_gnmax, noise: {family: gaussian, multiplier: 20}, "
    "selection: {threshold: 60, noise: {family: gaussian, multiplier: 40}}, interaction: {rounds: 4}}"
)
SANITIZE = (
    "mechanism.analysis=data_dependent",
    "mechanism.sanitize={method: smooth_sensitivity, order: 6, beta: 0.02, multiplier: 9, scale_multiplier: 9}",
)
FEW = "mechanism.queries.max=20"


@cache
def planned(*overrides: str) -> Plan:
    return plan(read_text(FINE, overrides=overrides))


@cache
def forecast_of(*overrides: str) -> Forecast:
    recipe = read_text(FINE, overrides=overrides).recipe
    assert isinstance(recipe.mechanism, Pate)
    return forecast_plan(planned(*overrides), recipe.mechanism, Facts.of(recipe), Agreement(), 0, lambda what: None)


@pytest.mark.parametrize("overrides", [(), (GNMAX, FEW), (LNMAX, FEW)])
def test_costs_are_those_of_the_analysis(overrides: tuple[str, ...]) -> None:
    actual, result = forecast_of(*overrides), planned(*overrides)
    counts_QM = simulate.simulate_counts(100, 10, result.mechanism_plan.queries, Agreement(), 0)
    expected = vote_analysis.analyse_votes(counts_QM, voting_of(result), 1e-5)
    assert actual.data_dependent.papers == pytest.approx(expected.expected_cost.classic.value, rel=1e-12)
    assert actual.data_dependent.bound == pytest.approx(expected.bound.improved.value, rel=1e-12)
    assert actual.data_dependent.exact == (
        None if expected.exact is None else pytest.approx(expected.exact.improved.value)
    )
    assert actual.answered * actual.queries == pytest.approx(expected.expected_answers, rel=1e-12)
    assert actual.worst_case == actual.unpublished == result.guarantee.epsilon


def test_many_queries_cost_what_their_mean_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 100 of 200 queries: within a sixth of what all of them say."""
    monkeypatch.setattr(module, "SIMULATED", 100)
    few, all_of_them = forecast_of.__wrapped__(), forecast_of()
    assert few.data_dependent.bound != all_of_them.data_dependent.bound
    assert few.data_dependent.bound == pytest.approx(all_of_them.data_dependent.bound, rel=0.15)
    assert few.stop.answers == pytest.approx(all_of_them.stop.answers, rel=0.1)


def test_the_run_ends_where_its_filter_does() -> None:
    """2,000 runs of the rule of a ballot, query by query: their mean, within 1 %."""
    actual, own = forecast_of(), planned().mechanism_plan
    assert actual.stop.reason == "filter"
    selection = voting_of(planned()).selection
    assert selection is not None
    counts_QM = simulate.simulate_counts(100, 10, 200, Agreement(), 0)
    pass_Q = np.exp(votes.log_pass(counts_QM.max(axis=1), selection)[0])
    random = np.random.default_rng(1)
    check, answer = 1 / 40**2, 2 / 20**2
    put, answered = [], []
    for _ in range(2000):
        passed_Q = random.random(200) < random.permutation(pass_Q)
        spent, count = 0.0, 0
        while count < 200 and spent + check + answer <= own.filter_limit * (1 + 1e-12):
            spent += check + answer * passed_Q[count]
            count += 1
        put.append(count)
        answered.append(passed_Q[:count].sum())
    assert actual.stop.queries == pytest.approx(np.mean(put), rel=0.01)
    assert actual.stop.answers == pytest.approx(np.mean(answered), rel=0.02)


def test_other_ends() -> None:
    every = forecast_of(GNMAX, FEW).stop
    assert (every.queries, every.answers, every.reason, every.max_queries) == (20, 20, "queries", None)
    enough = forecast_of("mechanism.queries={max: 200, answers: 5}").stop
    assert (enough.answers, enough.reason) == (5, "answers")
    assert enough.queries == pytest.approx(5 / forecast_of().answered)


def test_rows_are_the_recipe_with_another_check() -> None:
    actual = forecast_of(FEW, "budget.epsilon=auto")
    (own,) = (row for row in actual.rows if row.chosen)
    assert (own.threshold, own.selection_multiplier, own.noise_multiplier) == (60, 40, 20)
    assert (own.answered, own.right, own.stop) == (actual.answered, actual.right, actual.stop)
    assert len(actual.rows) == 4 * len(forecast.THRESHOLDS)
    other = "mechanism.aggregator.selection.noise.multiplier=25"
    expected = planned(FEW, "budget.epsilon=auto", other, "mechanism.aggregator.selection.threshold=75")
    (row,) = (row for row in actual.rows if (row.threshold, row.selection_multiplier) == (75, 25))
    assert row.worst_case == expected.guarantee.epsilon
    assert own.worst_case == actual.worst_case != row.worst_case
    by_threshold = [row.answered for row in actual.rows if row.selection_multiplier == 25]
    assert by_threshold == sorted(by_threshold, reverse=True)


def test_rows_that_do_not_fit_and_noise_that_is_solved() -> None:
    tight = forecast_of(FEW, "budget.epsilon=0.5", "mechanism.aggregator.noise.multiplier=auto")
    assert {row.selection_multiplier for row in tight.rows if row.worst_case is None} == {25}
    assert {row.noise_multiplier for row in tight.rows if row.worst_case is None} == {None}
    solved = {row.selection_multiplier: row.noise_multiplier for row in tight.rows if row.noise_multiplier is not None}
    assert solved[40] == tight.noise_multiplier > solved[50] > solved[75] > 0


def test_what_the_recipe_publishes_and_what_it_is_told_to() -> None:
    actual = forecast_of(*SANITIZE, FEW, "budget.epsilon=auto")
    assert actual.sanitised is not None
    assert actual.suggested is not None
    assert actual.sanitised.worst_case == actual.worst_case
    assert actual.unpublished == planned(FEW, "budget.epsilon=auto").guarantee.epsilon < actual.worst_case
    assert actual.release is actual.sanitised
    assert actual.suggested.epsilon < actual.sanitised.epsilon
    chosen = actual.suggested.sanitize
    block = (
        f"mechanism.sanitize={{method: smooth_sensitivity, order: {chosen.order}, beta: {chosen.beta}, "
        f"multiplier: {chosen.multiplier}, scale_multiplier: {chosen.scale_multiplier}}}"
    )
    assert actual.suggested.worst_case == planned(SANITIZE[0], block, FEW, "budget.epsilon=auto").guarantee.epsilon
    assert actual.pays is False


def test_a_release_that_the_budget_does_not_hold() -> None:
    actual = forecast_of(GNMAX.replace("40", "20"), FEW, "budget.epsilon=1.25")
    assert actual.suggested is not None
    assert actual.suggested.worst_case is actual.suggested.stop is None
    assert actual.pays is False


def test_of_interactive_runs_the_first_round() -> None:
    actual = forecast_of(INTERACTIVE)
    assert (actual.planned, actual.queries) == (200, 50)
    assert actual.sanitised is actual.suggested is actual.release is None
    assert actual.points[-1].queries == 50
    assert all(row.stop is not None and row.stop.queries <= 50 for row in actual.rows)


def test_points_end_in_the_figures() -> None:
    actual = forecast_of()
    last = actual.points[-1]
    assert actual.suggested is not None
    assert (last.queries, last.worst_case) == (200, actual.worst_case)
    assert last.data_dependent == actual.data_dependent.bound
    assert last.sanitised == pytest.approx(actual.suggested.epsilon, rel=1e-9)
    for name in ("queries", "worst_case", "data_dependent", "sanitised"):
        values = [getattr(point, name) for point in actual.points]
        assert values == sorted(values), name
