"""The rounds of an interactive run on simulated votes, against votes and noise that are drawn one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dprecipe.mechanisms.pate.commands.rounds_forecast import forecast_rounds
from dprecipe.mechanisms.pate.commands.simulate import Agreement, simulate_counts
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.train.analysis import voting_of
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text

FINE = (Path(__file__).parents[3] / "golden" / "rules" / "fine-pate.yaml").read_text("utf-8")
INTERACTIVE = (
    "mechanism.aggregator={kind: interactive_gnmax, noise: {family: gaussian, multiplier: 20}, "
    "selection: {threshold: 60, noise: {family: gaussian, multiplier: 40}}, interaction: {rounds: 3, threshold: 50}}"
)
GNMAX = "mechanism.aggregator={kind: gnmax, noise: {family: gaussian, multiplier: 40}}"
COUNTS = simulate_counts(100, 10, 5000, Agreement(), 0)


def planned(*overrides: str) -> tuple[PatePlan, object]:
    result = plan(read_text(FINE, overrides=overrides))
    return result.as_plan_of(PatePlan), voting_of(result)


def test_later_rounds_are_those_of_a_student_that_is_drawn_query_by_query() -> None:
    own, voting = planned(INTERACTIVE)
    student = 0.7
    rounds = forecast_rounds(own, COUNTS, voting, Agreement(student=student), 0)  # type: ignore[arg-type]
    assert [each.threshold for each in rounds] == [60, 50, 50]
    assert sum(each.queries for each in rounds) == own.queries
    random = np.random.default_rng(5)
    answered, right, labels, known = [], [], [], []
    for counts in COUNTS:
        plurality = int(counts.argmax())
        knows = random.random() < student
        guess = plurality if knows else int(random.choice([k for k in range(10) if k != plurality]))
        expected = np.zeros(10)
        expected[guess] = 100
        passes = (counts - expected).max() + random.normal(0, 40) >= 50
        answered.append(passes)
        if passes:
            right.append(int((counts + random.normal(0, 20, 10)).argmax()) == plurality)
        else:
            labels.append(1)
            known.append(knows)
    for each in rounds[1:]:
        assert each.answered == pytest.approx(np.mean(answered), abs=0.03)
        assert each.right == pytest.approx(np.mean(right), abs=0.05)
        assert each.own == pytest.approx(1 - each.answered)
        assert each.own_right == pytest.approx(np.mean(known), abs=0.03)


def test_a_student_that_knows_more_asks_less() -> None:
    own, voting = planned(INTERACTIVE)

    def answers(student: float) -> float:
        rounds = forecast_rounds(own, COUNTS, voting, Agreement(student=student), 0)  # type: ignore[arg-type]
        return sum(each.answers for each in rounds)

    assert answers(1.0) < answers(0.8) < answers(0.0)


def test_the_filter_ends_the_run_in_the_round_where_it_is_full() -> None:
    own, voting = planned(INTERACTIVE, "mechanism.queries={max: 200, answers: 20}")
    rounds = forecast_rounds(own, COUNTS, voting, Agreement(), 0)  # type: ignore[arg-type]
    assert own.filter_limit is not None
    spent = sum(
        each.asked / each.selection_multiplier**2 + each.answers * 2 / each.noise_multiplier**2 for each in rounds
    )
    assert spent <= own.filter_limit * 1.01
    assert sum(each.answers for each in rounds) <= own.answers * (1 + 1e-9)
    assert rounds[-1].asked < rounds[-1].queries
    assert any(each.asked < each.queries for each in rounds)


def test_other_aggregators_have_no_rounds() -> None:
    for overrides in ((), (GNMAX, "mechanism.queries.max=20")):
        own, voting = planned(*overrides)
        assert forecast_rounds(own, COUNTS, voting, Agreement(), 0) == ()  # type: ignore[arg-type]
