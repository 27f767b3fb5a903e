"""The JSON Schema of `dprecipe noise --format json`."""

from __future__ import annotations

from typing import Any

from dprecipe.noise.families import FAMILIES
from dprecipe.planning.schema import COUNT, DIGEST, NUMBER, TEXT

Schema = dict[str, Any]
MAYBE: Schema = {"type": ["number", "null"]}
POSITIVE: Schema = {"type": "number", "exclusiveMinimum": 0}
ERROR: Schema = {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "null: infinite"}


def noise_schema() -> Schema:
    """Returns the schema of the document `dprecipe.noise/v1`. Additions are allowed; what is here keeps its name and
    meaning."""
    distribution: Schema = {"family": {"enum": list(FAMILIES)}, "shape": MAYBE | {"description": "df or λ"}}
    compared = _object(
        **distribution,
        chosen={"type": "boolean", "description": "whether it is the recipe's own"},
        multiplier=POSITIVE,
        scale=POSITIVE | {"description": "multiplier × norm of a codeword"},
        l1=ERROR,
        l2=ERROR,
        l1_ratio=ERROR,
        l2_ratio=ERROR,
        equal_fisher_scale=POSITIVE,
        signal_to_noise={"type": "number", "minimum": 0},
        epsilon=NUMBER,
        accountant=TEXT,
        alternative=_object(accountant=TEXT, epsilon=NUMBER),
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dprecipe noise",
        **_object(
            schema={"const": "dprecipe.noise/v1"},
            recipe=_object(name=TEXT, digest=DIGEST),
            mechanism=TEXT,
            compared_as={"const": "encoded"},
            budget=_object(
                epsilon=POSITIVE,
                delta=POSITIVE,
                neighbouring={"enum": ["add_or_remove_one", "replace_one", "zero_out_one"]},
                accountant=TEXT,
            ),
            steps=COUNT,
            sampling_rate={"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
            codes=POSITIVE | {"description": "expected number of codes in a sum"},
            dimension=COUNT,
            codebook=_object(words=COUNT, norm=POSITIVE, envelope={"type": "number", "minimum": 1}),
            distributions={"type": "array", "items": compared, "minItems": 1},
            left_out={"type": "array", "items": _object(**distribution, reason=TEXT)},
            min_l1=_object(**distribution),
            min_l2=_object(**distribution),
            matters={"type": "boolean"},
            verdict=TEXT,
        ),
    }


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
