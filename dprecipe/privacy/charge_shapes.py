"""The shape of charges in documents, derived from the fields of events: pydantic models and their JSON Schema."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field, TypeAdapter, create_model

from dprecipe.language.base import Block, PositiveInt
from dprecipe.privacy.event_fields import charge_fields, holds_charges
from dprecipe.privacy.event_kinds import event_kinds
from dprecipe.privacy.events import field_types


@lru_cache(maxsize=128)
def charge_model(kind: str) -> type[Block]:
    """Returns a closed model of equal events of one kind: `count`, `kind`, and the fields of the event."""
    cls = event_kinds()[kind]
    fields: dict[str, Any] = {
        "count": (PositiveInt, ...),
        "kind": (Literal[kind], ...),
        **{name: (_shape_of(hint), ...) for name, hint in field_types(kind).items()},
    }
    model: type[Block] = create_model(
        f"{cls.__name__}Run", __base__=Block, __doc__=f"Equal events of kind `{kind}`.", **fields
    )
    return model


def _shape_of(hint: Any) -> Any:
    """Returns a field's type; for charges within an event, models of all kinds that hold no charges themselves."""
    if not holds_charges(hint):
        return hint
    constraints = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    models = tuple(charge_model(kind) for kind in event_kinds() if not charge_fields(kind))
    plain: Any = Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007
    rows: Any = tuple.__class_getitem__((plain, ...))
    for constraint in constraints:
        rows = Annotated[rows, constraint]
    return rows


def charge_type() -> Any:
    """Returns the union of the models of all known kinds, distinguished by `kind`."""
    models = tuple(map(charge_model, event_kinds()))
    return Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007


def charge_schemas() -> list[dict[str, Any]]:
    """Returns JSON Schemas of equal events, one for each kind that is known; each stands alone, wherever it is put."""
    return [_resolve(TypeAdapter(charge_model(kind)).json_schema()) for kind in event_kinds()]


def _resolve(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema with every reference replaced by its definition: definitions of charges are not recursive."""
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return inline(definitions[node["$ref"].removeprefix("#/$defs/")])
        # the mapping of a discriminator refers to definitions, too, and adds nothing to `kind`
        return {key: inline(value) for key, value in node.items() if key != "discriminator"}

    return inline(schema) if definitions else schema
