"""The JSON Schema of `dprecipe positions --format json`."""

from __future__ import annotations

from typing import Any

from dprecipe.planning.schema import COUNT, DIGEST, TEXT

Schema = dict[str, Any]
AMOUNT: Schema = {"type": "number", "minimum": 0}
CHANCE: Schema = {"type": "number", "minimum": 0, "maximum": 1}


def positions_schema() -> Schema:
    """Returns the schema of the document `dprecipe.positions/v1`. Additions are allowed; what is here keeps its name
    and meaning."""
    named = {"type": "object", "additionalProperties": CHANCE}
    bounds = named | {"description": "δ at `epsilon` by each bound that the noise has"}
    own = _object(epsilon=AMOUNT, delta=CHANCE, bound=TEXT, bounds=bounds)
    at = _object(**own["properties"], comparisons=named | {"description": "the paper's curves; no guarantee"})
    row = _object(
        position=COUNT,
        epsilon={"type": ["number", "null"], "minimum": 0, "description": "at `delta`; null: infinite"},
        bound=TEXT | {"description": "which gives it"},
        at={"type": "array", "items": at, "minItems": 1},
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dprecipe positions",
        **_object(
            schema={"const": "dprecipe.positions/v1"},
            recipe=_object(name=TEXT, digest=DIGEST),
            mechanism={"const": "pnsgd"},
            size=COUNT,
            steps=COUNT,
            steps_per_pass=COUNT,
            delta=CHANCE | {"description": "the budget's"},
            own=_object(
                order={"enum": ["sequential", "permuted"]},
                stop={"enum": ["last", "random"]},
                epsilon=AMOUNT,
                bound=TEXT,
                at={"type": "array", "items": own, "minItems": 1},
            )
            | {"description": "the run as the recipe has it; its guarantee"},
            positions={"type": "array", "items": row, "minItems": 1}
            | {"description": "as if the run went through the file in order, to its last step"},
        ),
    }


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
