"""A certificate's statements give the same plan again, whatever today's solver and defaults are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import PlanRefused
from dprecipe.planning import again
from dprecipe.planning.again import StatedOtherwise, StatedPlan, plan_again
from dprecipe.planning.make import plan as make_plan
from dprecipe.planning.make import plan_chosen
from dprecipe.planning.paid import list_solved_prices
from dprecipe.privacy import calibrate
from dprecipe.recipe.read import Loaded, read_text
from tests.recipe_texts import DIGITS, DPSGD, FULL_BATCH, PNSGD, STANDARDIZED, STEPS

MODEL = "model: {kind: logistic_regression}\n"
CLIPPED = "  preprocess: [{clip_features: {norm: 4.0}}]\n"
LENGTH = FULL_BATCH.replace("auto", "100.0") + "training: {steps: auto, optimizer: {kind: sgd, lr: 0.5}}\n"
FREE = DPSGD.replace("multiplier: auto", "multiplier: 1.1").replace("epsilon: 3.0", "epsilon: auto")
TUNING = """\
tuning:
  runs: {kind: negative_binomial, mean: 2, shape: 0.5}
  over: [{key: training.optimizer.lr, range: [0.1, 4.0], scale: log}]
  score: {metric: accuracy}
"""
TEXTS = {
    "noise": f"{DIGITS}{MODEL}{DPSGD}{STEPS}",
    "length": f"{DIGITS}{LENGTH}",
    "budget": f"{DIGITS}{MODEL}{FREE}{STEPS}",
    "share": f"{DIGITS}{STANDARDIZED % 0.1}{MODEL}{DPSGD}{STEPS}",
    "pnsgd": f"{DIGITS}{CLIPPED}{PNSGD}",
    "tuned": f"{DIGITS}{MODEL}{DPSGD}{STEPS}{TUNING}",
}


def load(name: str) -> Loaded:
    return read_text(f"recipe: dprecipe/v1\nname: {name}\n{TEXTS[name]}")


def stated_of(plan: Plan, **changes: Any) -> StatedPlan:
    resolved = plan.resolved if plan.tuning is None or plan.tuning.resolved is None else plan.tuning.resolved
    fields = {
        "resolved": json.loads(json.dumps(dict(resolved))),
        "solved": {**plan.solved, **list_solved_prices(plan.data, plan.stages)},
        "epsilon": plan.budget.epsilon,
        **changes,
    }
    return StatedPlan(**fields)


def fail(*_: object, **__: object) -> None:
    raise AssertionError("something was solved")


@pytest.mark.parametrize("name", TEXTS)
def test_the_same_plan_and_nothing_is_solved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(name)
    plan = make_plan(loaded)
    for solver in ("noise_multiplier", "calibrate_count"):
        monkeypatch.setattr(calibrate, solver, fail)
    assert plan_again(loaded, stated_of(plan)) == plan


def test_the_choice_among_several_runs() -> None:
    loaded = load("tuned")
    chosen = {"training.optimizer.lr": 0.7}
    plan = plan_chosen(loaded, chosen)
    found = plan_again(loaded, stated_of(plan, chosen=chosen))
    assert (found.digest, found.events, found.training) == (plan.digest, plan.events, plan.training)
    with pytest.raises(PlanRefused):
        plan_again(loaded, stated_of(plan, chosen={"training.optimizer.lr": 7.0}))


def test_other_solved_values_are_another_plan_that_keeps_the_budget() -> None:
    loaded = load("noise")
    plan = make_plan(loaded)
    more = plan_again(loaded, stated_of(plan, solved={"mechanism.noise.multiplier": 2.0}))
    assert more.events[0].to_json()["noise_multiplier"] == 2.0
    assert more.digest != plan.digest
    with pytest.raises(PlanRefused, match=r"P10\d budget.epsilon"):
        plan_again(loaded, stated_of(plan, solved={"mechanism.noise.multiplier": 0.6}))


@pytest.mark.parametrize(
    ("solved", "named"),
    [
        ({}, r"mechanism\.noise\.multiplier: missing"),
        ({"mechanism.noise.multiplier": 2.0, "training.steps": 3}, r"solved\.training\.steps: the recipe does not"),
        ({"mechanism.noise.multiplier": 2.0, "runtime.physical_batch": 3}, r"solved\.runtime\.physical_batch"),
        ({"mechanism.noise.multiplier": 2.0, "no.such": 3}, r"solved\.no\.such"),
        ({"mechanism.noise.multiplier": -2.0}, r"provenance\.solved"),
    ],
)
def test_values_are_stated_of_what_is_open_and_of_nothing_else(solved: dict[str, float], named: str) -> None:
    loaded = load("noise")
    with pytest.raises(StatedOtherwise, match=named):
        plan_again(loaded, stated_of(make_plan(loaded), solved=solved))


def changed(plan: Plan, path: str, value: object) -> StatedPlan:
    stated = stated_of(plan)
    *steps, last = path.split(".")
    block: Any = stated.resolved
    for step in steps:
        block = block[int(step) if isinstance(block, list) else step]
    block[last] = value
    return stated


@pytest.mark.parametrize(
    ("path", "value"),
    [("data.size", 14380), ("training.steps", 3.0), ("mechanism.noise.multiplier", 2.0), ("model", {"kind": "none"})],
)
def test_what_the_text_writes_is_what_it_says(path: str, value: object) -> None:
    loaded = load("noise")
    with pytest.raises(StatedOtherwise, match=f"resolved\\.{path}"):
        plan_again(loaded, changed(make_plan(loaded), path, value))


def test_what_it_does_not_write_is_the_default_of_the_day() -> None:
    loaded = load("noise")
    found = plan_again(loaded, changed(make_plan(loaded), "budget.neighbouring", "zero_out_one"))
    assert found.budget.neighbouring.value == "zero_out_one"
    assert found.resolved["budget"]["neighbouring"] == "zero_out_one"
    with pytest.raises(StatedOtherwise, match=r"resolved: budget\.forgiveness: no recipe has this"):
        plan_again(loaded, changed(make_plan(loaded), "budget.forgiveness", 1))


def test_a_key_that_is_newer_than_the_certificate_keeps_its_default() -> None:
    loaded = load("noise")
    stated = stated_of(make_plan(loaded))
    del stated.resolved["release"]["report"]  # type: ignore[attr-defined]
    found = plan_again(loaded, stated)
    assert found.release.report
    assert "report" not in found.resolved["release"]
    assert again._are_equal({"a": [1, True]}, {"a": [1, True]})
    assert not again._are_equal([1], [True])
