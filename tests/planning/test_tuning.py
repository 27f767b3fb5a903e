"""The plan of a tuned recipe: the budget is for all runs, and all runs are one mechanism."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.faults import PlanRefused
from dprecipe.mechanisms.plan import Plan
from dprecipe.planning.make import plan, plan_chosen, plan_trial
from dprecipe.privacy import accountants
from dprecipe.recipe.read import Loaded, read

RECIPE = Path(__file__).parents[2] / "recipes" / "tuned-digits.yaml"
POINT = {"training.optimizer.lr": 0.75, "mechanism.clip.norm": 0.1, "model.hidden.0": 48}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return read(RECIPE)


@pytest.fixture(scope="module")
def tuned(loaded: Loaded) -> Plan:
    return plan(loaded)


def test_the_budget_is_for_all_runs_and_one_run_costs_less(tuned: Plan) -> None:
    (charge,) = tuned.events
    assert tuned.tuning is not None
    assert (charge.count, charge.event.kind) == (1, "selected_best")
    assert 2.99 < tuned.guarantee.epsilon <= 3
    assert 2.0 < tuned.tuning.epsilon < 2.2
    terms = (1e-5, tuned.budget.neighbouring, "pld")
    assert accountants.epsilon(tuned.room.events, *terms) <= tuned.tuning.epsilon
    assert "chosen hyper-parameters" in tuned.released


def test_a_run_has_the_events_that_were_solved_for_and_its_own_cost_as_its_budget(loaded: Loaded, tuned: Plan) -> None:
    trial = plan_trial(loaded, tuned, POINT)
    assert tuned.tuning is not None
    assert trial.events == tuned.room.events
    assert trial.tuning is None
    assert trial.budget.epsilon == trial.guarantee.epsilon == tuned.tuning.epsilon
    assert trial.training.optimizer is not None
    assert trial.training.optimizer.lr == 0.75
    assert trial.release.sign is None


def test_a_length_that_is_solved_is_that_of_every_run() -> None:
    loaded = read(RECIPE, ("mechanism.noise.multiplier=20.0", "training.steps=auto"))
    tuned = plan(loaded)
    assert tuned.guarantee.epsilon <= 3
    assert plan_trial(loaded, tuned, POINT).events == tuned.room.events
    longer = read(RECIPE, ("mechanism.noise.multiplier=20.0", f"training.steps={tuned.length.steps + 1}"))
    with pytest.raises(PlanRefused, match="P102"):
        plan(longer)


def test_an_open_budget_is_what_the_best_of_the_runs_costs() -> None:
    tuned = plan(read(RECIPE, ("mechanism.noise.multiplier=20.0", "budget.epsilon=auto")))
    assert tuned.tuning is not None
    assert tuned.tuning.epsilon < tuned.guarantee.epsilon == tuned.budget.epsilon < 3


def test_the_plan_after_the_choice_keeps_its_digest_and_is_of_the_run_that_won(loaded: Loaded, tuned: Plan) -> None:
    chosen = plan_chosen(loaded, POINT)
    assert chosen.digest == tuned.digest
    assert chosen.events == tuned.events
    assert chosen.tuning is not None
    assert chosen.tuning.chosen == POINT
    assert chosen.model.hidden == (48,)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change",
    [{"training.optimizer.lr": 6.0}, {"model.hidden.0": 64}, {"model.hidden.0": 48.0}, {"training.steps": 80}],
)
def test_no_other_values_can_have_been_chosen(change: dict[str, float], loaded: Loaded) -> None:
    with pytest.raises(PlanRefused, match="P182"):
        plan_chosen(loaded, {**POINT, **change})
