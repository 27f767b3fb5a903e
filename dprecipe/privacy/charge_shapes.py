"""The shape of charges in documents, derived from the fields of events: pydantic models and their JSON Schema."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal, Union

from pydantic import Field, TypeAdapter, create_model

from dprecipe.language.base import Block, PositiveInt
from dprecipe.privacy.events import event_kinds, field_types


@lru_cache(maxsize=128)
def charge_model(kind: str) -> type[Block]:
    """A closed model of equal events of one kind: `count`, `kind`, and the fields of the event."""
    cls = event_kinds()[kind]
    fields: dict[str, Any] = {
        "count": (PositiveInt, ...),
        "kind": (Literal[kind], ...),
        **{name: (hint, ...) for name, hint in field_types(kind).items()},
    }
    model: type[Block] = create_model(
        f"{cls.__name__}Run", __base__=Block, __doc__=f"Equal events of kind `{kind}`.", **fields
    )
    return model


def charge_type() -> Any:
    """The union of the models of all kinds that are known, told apart by `kind`."""
    models = tuple(map(charge_model, event_kinds()))
    return Annotated[Union[models], Field(discriminator="kind")]  # noqa: UP007


def charge_schemas() -> list[dict[str, Any]]:
    """JSON Schemas of equal events, one for each kind that is known."""
    return [TypeAdapter(charge_model(kind)).json_schema() for kind in event_kinds()]
