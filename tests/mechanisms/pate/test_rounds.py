"""Rounds of queries with constants of their own: what is planned, what is charged, and who may stop where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate import charges
from dprecipe.mechanisms.pate.aggregators import aggregator_of, list_rounds
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.rounds import split_queries
from dprecipe.mechanisms.pate.theory.filter import sum_filter
from dprecipe.mechanisms.pate.train import ballot as module
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge

CHECKS = (NoisyThreshold(30.0), NoisyThreshold(50.0), NoisyThreshold(25.0))
ANSWERS = (NoisyMax("gaussian", 20.0), NoisyMax("gaussian", 10.0), NoisyMax("gaussian", 20.0))
WHOLE = 40 / 30**2 + 25 / 50**2 + 35 / 25**2 + 2 * (75 / 20**2 + 25 / 10**2)
Booths = Callable[..., Any]


def rate(plan: Plan) -> float:
    return sum_filter(plan.events)


@pytest.mark.parametrize(("queries", "rounds", "sizes"), [(100, 3, (33, 34, 33)), (4, 4, (1,) * 4), (5, 2, (2, 3))])
def test_rounds_of_about_the_same_size(queries: int, rounds: int, sizes: tuple[int, ...]) -> None:
    assert split_queries(queries, rounds) == sizes


def test_each_round_is_planned_with_its_own_constants(booth: Booths) -> None:
    planned = booth("rounds", 100).plan.mechanism_plan
    rounds = planned.interaction.rounds
    assert [part.queries for part in rounds] == [40, 25, 35]
    assert [part.threshold for part in rounds] == [4, 2, 1]
    assert [(part.check.event, part.answer.event) for part in rounds] == list(zip(CHECKS, ANSWERS, strict=True))
    assert planned.votes == (
        *(Charge(check, count) for check, count in zip(CHECKS, (40, 25, 35), strict=True)),
        Charge(ANSWERS[0], 75),
        Charge(ANSWERS[1], 25),
    )
    assert planned.filter_limit == pytest.approx(WHOLE, rel=1e-12)
    assert [planned.next_votes(put) for put in (0, 39, 40, 64, 65, 99)] == [
        (CHECKS[n], ANSWERS[n]) for n in (0, 0, 1, 1, 2, 2)
    ]
    assert [(part, aggregator.check, aggregator.answer) for part, aggregator in list_rounds(planned)] == [
        (range(40), CHECKS[0], ANSWERS[0]),
        (range(40, 65), CHECKS[1], ANSWERS[1]),
        (range(65, 100), CHECKS[2], ANSWERS[2]),
    ]


@pytest.mark.parametrize("epsilon", [1.0, 2.5, 4.0, 9.0])
def test_a_budget_that_is_too_small_for_all_is_held_and_used_up(booth: Booths, epsilon: float) -> None:
    plan = booth("rounds", 100, f"budget.epsilon={epsilon}").plan
    assert {charge.event for charge in plan.events} >= {*CHECKS, *ANSWERS}
    assert rate(plan) <= WHOLE * (1 + 1e-12)
    budget = plan.budget
    spent = accountants.epsilon(plan.events, budget.delta, budget.neighbouring, "pld")
    assert spent <= epsilon
    if rate(plan) < WHOLE * (1 - 1e-9):
        assert spent == pytest.approx(epsilon, rel=1e-6)
        assert sum(isinstance(charge.event, FilterRest) for charge in plan.events) == 1


def test_noise_of_the_rounds_that_state_none_is_solved(booth: Booths) -> None:
    plan = booth("rounds", 100, "budget.epsilon=6", "mechanism.aggregator.noise.multiplier=auto").plan
    (solved,) = plan.solved.values()
    fixed = 40 / 30**2 + 25 / 50**2 + 35 / 25**2 + 2 * 25 / 10**2
    assert rate(plan) == pytest.approx(fixed + 2 * 75 / solved**2, rel=1e-12)
    assert plan.guarantee.epsilon == pytest.approx(6, rel=1e-4)
    assert plan.guarantee.epsilon <= 6


def test_the_last_round_takes_what_the_budget_leaves(booth: Booths) -> None:
    plan = booth("rounds", 100, "budget.epsilon=9", "mechanism.queries.max=auto").plan
    queries, one = plan.mechanism_plan.queries, 1 / 25**2 + 2 / 20**2
    assert plan.mechanism_plan.interaction.rounds[-1].queries == queries - 65
    more = accountants.epsilon(
        (*plan.events, Charge(CHECKS[2], 1), Charge(ANSWERS[2], 1)), 1e-5, plan.budget.neighbouring, "gdp"
    )
    assert plan.guarantee.epsilon <= 9 < more
    assert rate(plan) == pytest.approx(WHOLE + (queries - 100) * one, rel=1e-9)


def test_of_few_answers_those_that_cost_most_are_charged(booth: Booths) -> None:
    plan = booth("rounds", 100, "mechanism.queries.answers=30").plan
    checks = 40 / 30**2 + 25 / 50**2 + 35 / 25**2
    assert rate(plan) == pytest.approx(checks + 2 * (25 / 10**2 + 5 / 20**2), rel=1e-9)
    assert {charge.event for charge in plan.events} >= {*CHECKS, *ANSWERS}


def test_each_round_is_put_with_its_noise_and_charged_its_events(
    booth: Booths, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(module, "noise", lambda event, stream, count: drawn.append(event) or np.zeros(count))
    one_booth = booth("rounds", 100, counts=[[5, 0, 0]] * 100)
    ballot, even = one_booth.open(), np.full((100, 3), 1 / 3)
    for part, aggregator in list_rounds(one_booth.plan.mechanism_plan):
        ballot.put(part, even[part.start : part.stop] if part.start else None, aggregator=aggregator)
    # n - N p is 5 - 5/3 = 3.33 everywhere, above the thresholds 2 and 1.
    assert ballot.answered == 100
    assert ballot.stop_reason == "completed"
    assert [event for index, event in enumerate(drawn) if event not in drawn[:index]] == [
        CHECKS[0], ANSWERS[0], CHECKS[1], ANSWERS[1], CHECKS[2],
    ]  # fmt: skip
    spending = one_booth.remaining_budget
    assert [spending.count(check) for check in CHECKS] == [40, 25, 35]
    assert [spending.count(answer) for answer in ANSWERS[:2]] == [75, 25]
    assert not ballot.lost
    assert charges.find_contradictions(one_booth.plan, spending.charged, _budget("completed")) == []


def test_a_threshold_of_its_own_turns_away(booth: Booths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "noise", lambda event, stream, count: np.zeros(count))
    one_booth = booth("rounds", 100, counts=[[3, 1, 1]] * 100)
    ballot, even = one_booth.open(), np.full((100, 3), 1 / 3)
    for part, aggregator in list_rounds(one_booth.plan.mechanism_plan):
        ballot.put(part, even[part.start : part.stop] if part.start else None, aggregator=aggregator)
    # 3 < 4, 3 - 5/3 = 1.33 < 2, and 1.33 >= 1.
    assert ballot.answered_queries.tolist() == [False] * 65 + [True] * 35


def test_a_run_that_stops_is_one_whose_next_round_does_not_fit(booth: Booths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "noise", lambda event, stream, count: np.zeros(count))
    one_booth = booth("rounds", 100, "budget.epsilon=2.5", counts=[[5, 0, 0]] * 100)
    ballot, even = one_booth.open(), np.full((100, 3), 1 / 3)
    for part, aggregator in list_rounds(one_booth.plan.mechanism_plan):
        ballot.put(part, even[part.start : part.stop] if part.start else None, aggregator=aggregator)
    spending = one_booth.remaining_budget
    assert ballot.stop_reason == "budget"
    assert 0 < ballot.queries_put < 100
    check, answer = one_booth.plan.mechanism_plan.next_votes(ballot.queries_put)
    assert not spending.holds([Charge(check, 1), Charge(answer, 1)])
    spending.charge_rest()
    assert charges.find_contradictions(one_booth.plan, spending.charged, _budget("budget")) == []
    without = [charge for charge in spending.charged if not isinstance(charge.event, FilterRest)]
    fewer = [replace(without[0], count=without[0].count - 5), *without[1:]]
    missing = 1 / np.sqrt(one_booth.plan.mechanism_plan.filter_limit * (1 - 1e-14) - sum_filter(fewer))
    lines = charges.find_contradictions(one_booth.plan, [*fewer, Charge(FilterRest(missing), 1)], _budget("budget"))
    assert any("the filter held another query" in line for line in lines) or any("answers" in line for line in lines)


def test_by_default_rounds_are_alike(booth: Booths) -> None:
    planned = booth("interactive", 100).plan.mechanism_plan
    assert [part.queries for part in planned.interaction.rounds] == [50, 50]
    assert len({(part.check.event, part.answer.event) for part in planned.interaction.rounds}) == 1
    assert aggregator_of(planned).further == 1
    assert aggregator_of(planned, 0).further == 4


def _budget(reason: str) -> Any:
    from dprecipe.contract.facts import BudgetFacts

    return BudgetFacts.model_construct(attempts=1, stop_reason=reason)


def test_nothing_else_is_written(booth: Booths, tmp_path: Path) -> None:
    """The plan's JSON names each event once, and each round refers to it."""
    written = booth("rounds", 100).plan.to_json()
    rounds = written["details"]["interaction"]["rounds"]
    assert [part["check"]["count"] for part in rounds] == [40, 25, 35]
    assert [written["events"][part["check"]["event"]]["noise_multiplier"] for part in rounds] == [30, 50, 25]
    assert [written["events"][part["answer"]["event"]]["noise_multiplier"] for part in rounds] == [20, 10, 20]
