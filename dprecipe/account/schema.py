"""The JSON Schema of an account's public statement."""

from __future__ import annotations

from typing import Any

from dprecipe.account.entries import MAX_ATTEMPTS, MAX_WHAT, NONCE, RUN
from dprecipe.account.facts import SCHEMA
from dprecipe.account.statement import STATEMENT_SCHEMA
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.charge_shapes import charge_schemas

DIGEST = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
TIME = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"}
COUNT = {"type": "integer", "minimum": 0}
NUMBER = {"type": "number", "minimum": 0}
NUMBER_OR_INFINITE = {"type": ["number", "null"], "minimum": 0, "description": "null: infinite"}
ATTEMPT = {
    "run": {"type": "string", "pattern": f"^{RUN}$"},
    "attempt": {"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS},
}
EVENTS = {"type": "array", "items": {"$ref": "#/$defs/charge"}}
SPENT = {"$ref": "#/$defs/spent"}
WHAT = {"type": "string", "maxLength": MAX_WHAT}
OPTIONAL = frozenset({"release"})
"""Fields of entries that are written only where there is something to say."""
ENTRIES: dict[str, dict[str, Any]] = {
    "bind": {"commitment": {"type": "string", "pattern": "^[0-9a-f]{64}$"}},
    "reserve": {
        **ATTEMPT,
        "what": WHAT,
        "nonce": {"type": "string", "pattern": f"^{NONCE}$"},
        "events": EVENTS,
        "cost": SPENT,
        "claim": {"oneOf": [{"$ref": "#/$defs/claim"}, {"type": "null"}]},
    },
    "settle": {**ATTEMPT, "final": {"type": "boolean"}, "events": EVENTS, "cost": SPENT, "release": DIGEST},
    "void": ATTEMPT,
}


def statement_schema() -> dict[str, Any]:
    """Returns the schema of `dprecipe.account-statement/v1`: its form. `dprecipe account verify` checks its content."""
    place = {"seq": COUNT, "prev": DIGEST, "time": TIME}
    entries = [
        _close(OPTIONAL & set(fields), **place, type={"const": kind}, **fields) for kind, fields in ENTRIES.items()
    ]
    facts = _close(
        schema={"const": SCHEMA},
        name={"type": "string", "maxLength": 80},
        id={"type": "string", "pattern": "^[0-9a-f]{32}$"},
        created=TIME,
        epsilon={"type": "number", "exclusiveMinimum": 0},
        delta={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        unit={"type": "string", "minLength": 1, "maxLength": 200},
        neighbouring={"enum": [relation.value for relation in Neighbouring]},
        max_epsilon_per_run={"type": ["number", "null"], "exclusiveMinimum": 0},
        orders={"type": "array", "items": {"type": "number", "exclusiveMinimum": 1}, "minItems": 1},
    )
    document = _close(
        schema={"const": STATEMENT_SCHEMA},
        facts=facts,
        entries={"type": "array", "items": {"oneOf": entries}},
        count=COUNT,
        head=DIGEST,
        runs=COUNT,
        open_reservations=COUNT,
        spent=SPENT,
        epsilon_so_far=NUMBER_OR_INFINITE,
        odometer=NUMBER_OR_INFINITE,
    )
    definitions = {
        "spent": _close(rdp={"type": "array", "items": NUMBER_OR_INFINITE, "minItems": 1}, delta=NUMBER),
        "claim": _close(epsilon=NUMBER, delta=NUMBER),
        "charge": {"oneOf": charge_schemas()},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dprecipe account statement",
        **document,
        "$defs": definitions,
    }


def _close(optional: frozenset[str] = frozenset(), /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }
