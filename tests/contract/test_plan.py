"""Typed plans: what a mechanism's plan holds, what its JSON says, and what its digest covers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dprecipe.cli.schema import plan_schema
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import MECHANISMS
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read

RECIPES = Path(__file__).parents[2] / "recipes"
ONE_OF_EACH = (
    "quickstart.yaml",
    "encoded-mnist.yaml",
    "pate-digits.yaml",
    "adult-pnsgd.yaml",
    "correlated-digits.yaml",
)
MADE: dict[str, Plan] = {}


def plan_recipe(name: str) -> Plan:
    """The plan of a recipe, made once."""
    if name not in MADE:
        MADE[name] = plan(read(RECIPES / name))
    return MADE[name]


def test_there_is_one_of_each() -> None:
    assert {plan_recipe(name).mechanism for name in ONE_OF_EACH} == set(MECHANISMS)
    for name in ONE_OF_EACH:
        assert type(plan_recipe(name).mechanism_plan) is MECHANISMS[plan_recipe(name).mechanism].plan_type


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_schema_knows_every_constant_of_every_mechanism(name: str) -> None:
    schema, content = plan_schema(), json.loads(json.dumps(plan_recipe(name).to_json()))
    jsonschema.validate(content, schema)
    for key in content["details"]:
        less = {**content, "details": {k: v for k, v in content["details"].items() if k != key}}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(less, schema)


def keys(value: Any) -> set[str]:
    """All keys of a document."""
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys(inner)}
    return {key for inner in value for key in keys(inner)} if isinstance(value, list) else set()


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_noise_and_rates_stand_in_the_events_alone(name: str) -> None:
    details = plan_recipe(name).to_json()["details"]
    assert not keys(details) & {"noise_multiplier", "multiplier", "sigma", "sampling_rate", "expected_batch", "length"}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_digest_covers_every_cause_and_nothing_that_follows(name: str) -> None:
    """A later version may describe or solve a plan otherwise: the digest of a certificate stays what it was."""
    whole = plan_recipe(name)
    for block in whole.resolved:
        resolved = {**whole.resolved, block: "other"}
        assert (replace(whole, resolved=resolved).digest == whole.digest) is (block == "runtime"), block
    source = replace(whole.source, attachments=(("a.txt", "other"),))
    for change in (
        {"solved": {**whole.solved, "training.epochs": 17.0}},
        {"budget": replace(whole.budget, epsilon=17.0)},
        {"budget": replace(whole.budget, delta=1e-9)},
        {"source": source},
    ):
        assert replace(whole, **change).digest != whole.digest, change
    assert replace(whole, assumptions=(), spending=(), guarantee=replace(whole.guarantee, epsilon=0.1)).digest == (
        whole.digest
    )
