"""Typed plans: what a mechanism's plan holds, what its JSON says, and what its digest covers."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
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


def changed(value: Any) -> Any:
    """Another value of the same type; `None`: this one has no other that could be told by its type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 1.5 + 1.0
        case str():
            return value + "x"
        case tuple() if value:
            return None if (first := changed(value[0])) is None else (first, *value[1:])
        case _ if is_dataclass(value) and not isinstance(value, type):
            for field in fields(value):
                if (other := changed(getattr(value, field.name))) is not None:
                    try:
                        return replace(value, **{field.name: other})
                    except ValueError:
                        continue
    return None


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_digest_covers_every_constant(name: str) -> None:
    whole, tried = plan_recipe(name), 0
    for field in fields(whole.mechanism_plan):  # type: ignore[arg-type]
        other = changed(getattr(whole.mechanism_plan, field.name))
        if other is None:
            continue
        try:
            digest = replace(whole, mechanism_plan=replace(whole.mechanism_plan, **{field.name: other})).digest  # type: ignore[type-var]
        except ValueError:
            continue  # a plan that contradicts its own events can't be made
        assert digest != whole.digest, field.name
        tried += 1
    assert tried >= 4
