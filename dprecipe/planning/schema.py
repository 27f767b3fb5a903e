"""The JSON Schema of `dprecipe plan --format json`."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from dprecipe.contract.mechanism import MechanismPlan
from dprecipe.contract.plan import plan_adapter
from dprecipe.contract.stages import TRAINING
from dprecipe.contract.table import MECHANISMS
from dprecipe.data.paid.schema import PAID
from dprecipe.privacy.charge_shapes import charge_schemas

Schema = dict[str, Any]
DIGEST: Schema = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
NUMBER: Schema = {"type": "number"}
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 1}


def plan_schema() -> Schema:
    """Returns the schema of the document `dprecipe.plan/v1`. Additions are allowed; what is here keeps its name and
    meaning."""
    point = _object(epsilon={"type": "number", "minimum": 0}, delta={"type": "number", "minimum": 0, "maximum": 1})
    at = _object(position=COUNT, **point["properties"])
    guarantee = _object(
        epsilon=NUMBER,
        delta=NUMBER,
        neighbouring={"enum": ["add_or_remove_one", "replace_one", "zero_out_one"]},
        unit=TEXT,
        accountant=TEXT,
        alternative=_object(accountant=TEXT, epsilon=NUMBER),
        profile={"type": "array", "items": point},
    )
    guarantee["properties"]["by_position"] = {"type": "array", "items": at, "minItems": 1, "maxItems": 1000}
    row = _object(
        accountant=TEXT, epsilon={"type": ["number", "null"]}, holds={"type": "boolean"}, source=TEXT, note=TEXT
    )
    kinds, definitions = _details()
    document = _object(
        schema={"const": "dprecipe.plan/v1"},
        recipe=_object(name=TEXT, digest=DIGEST),
        digest=DIGEST,
        mechanism=TEXT,
        solved={"type": "object", "additionalProperties": NUMBER},
        steps=COUNT,
        sampling_rate={"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
        events={"type": "array", "items": {"oneOf": charge_schemas()}, "minItems": 1},
        guarantee=guarantee,
        budget=_object(epsilon=NUMBER, delta=NUMBER),
        released={"type": "array", "items": TEXT},
        assumptions={
            "type": "array",
            "items": _object(id=TEXT, text=TEXT, checked_by={"enum": ["code", "test", "declaration"]}),
        },
        details={"type": "object", "description": "the mechanism's own constants"},
    )
    document["properties"]["comparison"] = {
        "type": "array",
        "items": row,
        "description": "with --compare-accountants: what others say of the same events; never the claim",
    }
    document["properties"] |= {"stages": _stages(), "spending": _spending()}
    document["properties"]["policies"] = {
        "type": "array",
        "items": _object(name=TEXT, digest=DIGEST),
        "description": "the policies that the recipe was checked against, where there are any",
    }
    one_run = _object(epsilon=NUMBER)
    document["properties"]["one_run"] = {**one_run, "description": "of a tuned run: what one of its runs costs"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dprecipe plan",
        **document,
        "allOf": kinds,
        "$defs": definitions,
    }


def _stages() -> Schema:
    """Returns the schema of the paid steps of preprocessing, for recipes that have any."""
    step: Schema = {"type": "integer", "minimum": 0, "description": "its number in data.preprocess, from 0"}
    place: Schema = {"type": "integer", "minimum": 0, "description": "its place in `events`, from 0"}
    events = {"type": "array", "items": _object(count=COUNT, event=place), "minItems": 1}
    stage = _object(step=step, kind={"enum": list(PAID)}, noise_multiplier=NUMBER, events=events)
    return {"type": "array", "items": stage, "minItems": 1}


def _spending() -> Schema:
    """Returns the schema of the cost that each of them, and the mechanism by itself, would have alone."""
    step: Schema = {"type": ["integer", "null"], "minimum": 0, "description": "null: of the mechanism"}
    part = _object(kind={"enum": [*PAID, TRAINING]}, step=step, epsilon={"type": "number", "minimum": 0})
    return {"type": "array", "items": part, "minItems": 2}


def _details() -> tuple[list[Schema], Schema]:
    """Returns the schema of `details` for each mechanism, by the fields of its plans, and the definitions that this
    refers to."""
    kinds: list[tuple[str, TypeAdapter[MechanismPlan]]] = [
        (mechanism.kind, plan_adapter(mechanism.plan_type)) for mechanism in MECHANISMS.values()
    ]
    result, combined = TypeAdapter.json_schemas([(kind, "serialization", result) for kind, result in kinds])
    rules = [
        {
            "if": {"properties": {"mechanism": {"const": kind}}},
            "then": {"properties": {"details": result[kind, "serialization"]}},
        }
        for kind, _ in kinds
    ]
    return rules, combined["$defs"]


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
