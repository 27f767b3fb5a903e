"""JSON Schemas as a second validator reads them, each checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jsonschema


@cache
def validator_of(make: Callable[[], Mapping[str, Any]]) -> jsonschema.Draft202012Validator:
    """A validator of the schema that `make` makes, which is itself a valid schema: to check that takes a hundred times
    as long as to check what follows it."""
    schema = make()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
