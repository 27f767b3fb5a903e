"""A recipe with some of its values replaced: one run of a tuned recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from dprecipe.recipe.root import Recipe


class PointError(ValueError):
    """The values make no recipe; the text says why."""


def set_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Returns the recipe with `values` (JSON types) at their dotted paths; blocks that are not written are begun.

    Raises:
        PointError: no such key, or no value that it can have.
    """
    plain = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for path, value in values.items():
        _set(plain, path, value)
    try:
        return Recipe.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise PointError(_explain(first["type"], first["msg"])) from None


def _explain(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "a recipe has no such key"
    return message.replace("Input should", "it should").replace("array", "list")


def _set(plain: Any, path: str, value: Any) -> None:
    *steps, last = path.split(".")
    for step in steps:
        plain = _enter(plain, step)
    if isinstance(plain, list):
        plain[_index(plain, last)] = value
    elif isinstance(plain, dict):
        plain[last] = value
    else:
        raise PointError("a recipe has no such key")


def _enter(plain: Any, step: str) -> Any:
    if isinstance(plain, list):
        return plain[_index(plain, step)]
    if not isinstance(plain, dict):
        raise PointError("a recipe has no such key")
    if plain.get(step) is None:
        plain[step] = {}
    return plain[step]


def _index(items: list[Any], step: str) -> int:
    if not (step.isdecimal() and step.isascii() and len(step) < 6 and int(step) < len(items)):
        raise PointError(f"the list has no item `{step[:40]}`")
    return int(step)
