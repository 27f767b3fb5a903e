"""The JSON Schema of `dprecipe votes --format json`."""

from __future__ import annotations

from typing import Any

from dprecipe.planning.schema import COUNT, DIGEST, NUMBER, TEXT

Schema = dict[str, Any]
POSITIVE: Schema = {"type": "number", "exclusiveMinimum": 0}
AMOUNT: Schema = {"type": "number", "minimum": 0}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}


def votes_schema() -> Schema:
    """Returns the schema of `dprecipe.votes/v1`. Keys may be added; those here keep their names and meanings."""
    stop = _object(
        queries=AMOUNT,
        answers=AMOUNT,
        reason={"enum": ["filter", "answers", "queries"]},
        max_queries=_maybe(AMOUNT) | {"description": "queries that fit the filter alone; null: no filter"},
    )
    release = _object(
        order=POSITIVE,
        beta=POSITIVE,
        multiplier=POSITIVE,
        scale_multiplier=POSITIVE,
        failure=POSITIVE | {"description": "`sanitize.delta`"},
        epsilon=_maybe(AMOUNT) | {"description": "expected, at `delta`; null: infinite"},
        delta=POSITIVE,
        deviation=_maybe(AMOUNT) | {"description": "standard deviation of ε that the noise of the value causes"},
        total=_maybe(AMOUNT) | {"description": "Rényi, at `order`, before noise"},
        cost=_maybe(AMOUNT) | {"description": "of the release itself, Rényi, at `order`"},
        worst_case=_maybe(AMOUNT) | {"description": "the claim of a run that publishes; null: does not fit the budget"},
        stop=_maybe(stop),
    )
    row = _object(
        threshold=POSITIVE,
        selection_multiplier=POSITIVE,
        chosen={"type": "boolean", "description": "it is the recipe's own"},
        noise_multiplier=_maybe(POSITIVE),
        answered=SHARE,
        right=_maybe(SHARE),
        stop=_maybe(stop),
        worst_case=_maybe(AMOUNT) | {"description": "null: no plan keeps the budget"},
    )
    point = _object(queries=COUNT, worst_case=_maybe(AMOUNT), data_dependent=_maybe(AMOUNT), sanitised=_maybe(AMOUNT))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dprecipe votes",
        **_object(
            schema={"const": "dprecipe.votes/v1"},
            recipe=_object(name=TEXT, digest=DIGEST),
            aggregator=TEXT,
            teachers=COUNT,
            classes=COUNT,
            noise_multiplier=POSITIVE,
            threshold=_maybe(POSITIVE),
            selection_multiplier=_maybe(POSITIVE),
            simulated=_object(
                agreement={"type": "array", "items": SHARE, "minItems": 2, "maxItems": 2},
                seed={"type": "integer", "minimum": 0},
            ),
            delta=POSITIVE,
            planned=COUNT,
            queries=COUNT
            | {"description": "the queries that the figures cover: all, or those of an interactive run's first round"},
            answered=SHARE,
            right=SHARE | {"description": "share of the answers that are the class with the most votes"},
            stop=stop,
            worst_case=_maybe(NUMBER),
            has_paid_steps={
                "type": "boolean",
                "description": "paid steps of preprocessing: in the worst case alone",
            },
            unpublished=_maybe(NUMBER) | {"description": "`worst_case` of the recipe without `sanitize`"},
            data_dependent=_object(
                papers=_maybe(AMOUNT) | {"description": "expected cost, classic conversion: no bound"},
                bound=_maybe(AMOUNT),
                exact=_maybe(AMOUNT) | {"description": "null: not worked out"},
            ),
            sanitised=_maybe(release) | {"description": "by the recipe's constants"},
            suggested=_maybe(release),
            rows={"type": "array", "items": row},
            points={"type": "array", "items": point, "minItems": 1},
            pays={"type": "boolean"},
            verdict=TEXT,
        ),
    }


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
