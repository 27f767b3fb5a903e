"""The base of JSON documents that commands print: one model gives the text, the JSON and the JSON Schema.

A document may gain keys in a later version, so its schema allows keys that it does not name; one with `extra="forbid"`
is closed.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import ConfigDict, Field, PlainSerializer

from dprecipe.contract.facts import Digest
from dprecipe.language.base import Block, NonNegativeFloat
from dprecipe.screen import as_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


OrInfinite = Annotated[
    float, Field(ge=0, allow_inf_nan=True), PlainSerializer(_finite, return_type=NonNegativeFloat | None)
]
"""A number that is null in JSON where it is infinite."""


class Part(Block):
    """A part of a document."""

    model_config = ConfigDict(extra="ignore", json_schema_serialization_defaults_required=True)


class RecipeName(Part):
    """The recipe, and the SHA-256 of its texts."""

    name: str
    digest: Digest


class Document(Part):
    """A document. Each names its schema: `schema_`, in JSON `schema`."""

    def to_json(self) -> dict[str, Any]:
        """Returns the document as JSON types."""
        return self.model_dump(mode="json", by_alias=True)

    def to_text(self) -> str:
        """Returns the document as the text that a command prints."""
        return as_json(self.to_json())


def schema_of(model: type[Document]) -> dict[str, Any]:
    """Returns the JSON Schema of what a document writes."""
    return {"$schema": DIALECT, **model.model_json_schema(mode="serialization")}
