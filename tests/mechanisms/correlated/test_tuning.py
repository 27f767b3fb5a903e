"""The best of several runs with correlated noise: runs alike in their events, whatever else they draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dprecipe
from dprecipe.contract.plan import Plan
from dprecipe.faults import PlanRefused
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring

TUNING = (
    "tuning={runs: {kind: negative_binomial, mean: 3, shape: 0.5}, score: {metric: accuracy, records: test}, "
    "over: [{key: %s, values: [%s]}]}"
)
LEARNING_RATES = TUNING % ("training.optimizer.lr", "0.2, 1.0")


@pytest.mark.parametrize("form", ["cycles", "bands"])
def test_the_budget_is_for_the_best_of_all_runs(form: str, request: pytest.FixtureRequest) -> None:
    make: Callable[..., Plan] = request.getfixturevalue(form)
    alone, tuned = make(), make(LEARNING_RATES)
    multiplier = "mechanism.noise.multiplier"
    assert tuned.solved[multiplier] > alone.solved[multiplier]
    spent = accountants.epsilon(tuned.events, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    assert 0.995 * 3 <= spent <= 3


@pytest.mark.parametrize(
    ("form", "overrides", "solved"),
    [
        pytest.param("cycles", ("mechanism.noise.previous=auto",), "mechanism.noise.previous", id="share"),
        pytest.param("bands", ("mechanism.noise.power=auto",), "mechanism.noise.power", id="power"),
        pytest.param(
            "bands", ("mechanism.noise.bands=auto", "mechanism.noise.power=auto"), "mechanism.noise.bands", id="bands"
        ),
        pytest.param(
            "cycles",
            ("training.epochs=null", "training.steps=auto", "mechanism.noise.multiplier=16"),
            "training.steps",
            id="passes",
        ),
        pytest.param(
            "bands", ("training.steps=auto", "mechanism.noise.multiplier=9"), "training.steps", id="groups in steps"
        ),
        pytest.param(
            "bands",
            ("training.steps=null", "training.epochs=auto", "mechanism.noise.multiplier=9"),
            "training.epochs",
            id="groups in epochs",
        ),
    ],
)
def test_what_is_auto_is_solved_for_all_runs(
    form: str, overrides: tuple[str, ...], solved: str, request: pytest.FixtureRequest
) -> None:
    tuned = request.getfixturevalue(form)(LEARNING_RATES, *overrides)
    assert tuned.solved[solved] > 0
    (charge,) = tuned.events
    assert charge.event.base == tuned.mechanism_plan.events


@pytest.mark.parametrize(
    ("form", "key", "values"),
    [("cycles", "mechanism.noise.previous", "0.5, 0.8"), ("bands", "mechanism.noise.bands", "1, 3")],
)
def test_runs_of_other_noise_cost_something_else(
    form: str, key: str, values: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(PlanRefused) as refusal:
        request.getfixturevalue(form)(TUNING % (key, values))
    assert [finding.code for finding in refusal.value.findings] == ["P181"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["cycles", "bands"])
def test_a_tuned_run_ends_in_a_release_that_verifies(form: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    tuned = dprecipe.tune(request.getfixturevalue(form)(LEARNING_RATES), tmp_path / "run")
    verified = dprecipe.verify(tuned.release)
    assert verified.claim.epsilon <= 3
    assert verified.statement.predicate.tuning is not None
