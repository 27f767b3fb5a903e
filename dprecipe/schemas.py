"""JSON Schemas of what dprecipe reads and writes, for editors and other tools. Draft 2020-12."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from dprecipe.mechanisms.table import MECHANISMS
from dprecipe.planning.schema import plan_schema
from dprecipe.recipe.root import Recipe
from dprecipe.release.schema import certificate_schema
from dprecipe.text.codes import CODES

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PART = ".part"
DATA_KEYS = ("const", "enum", "default", "examples")


def recipe_schema() -> Schema:
    """What an editor checks: a whole recipe, or the part of one that a recipe with `extends` writes."""
    full = Recipe.model_json_schema(by_alias=True, mode="validation")
    definitions: Schema = {name: _helpful(body) for name, body in full.pop("$defs").items()}
    definitions["Recipe"] = _helpful(full)
    parts = {name + PART: _optional(body) for name, body in deepcopy(definitions).items()}
    parts["Recipe" + PART]["properties"]["extends"] = {
        "type": "string",
        "minLength": 1,
        "description": "the recipe this one is laid over, relative to this file",
    }
    return {
        "$schema": DIALECT,
        "title": "dprecipe recipe",
        "description": "What is to be learned, and how much privacy may be spent (language dprecipe/v1).",
        "if": {"required": ["extends"]},
        "then": {"$ref": f"#/$defs/Recipe{PART}"},
        "else": {"$ref": "#/$defs/Recipe"},
        "$defs": definitions | parts,
    }


def _helpful(node: Any) -> Any:
    """Tagged unions as `if kind is … then …`: an editor then speaks of one kind, not of all at once."""
    if isinstance(node, list):
        return [_helpful(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "discriminator" in node and "oneOf" in node:
        tag, mapping = node["discriminator"]["propertyName"], node["discriminator"]["mapping"]
        default = node["discriminator"].get("default")
        rest = {key: value for key, value in node.items() if key not in ("discriminator", "oneOf")}
        return rest | {
            "type": "object",
            "properties": {tag: {"enum": list(mapping)}},
            "required": [] if default else [tag],
            "allOf": [
                {
                    "if": {"properties": {tag: {"const": kind}}, "required": [] if kind == default else [tag]},
                    "then": {"$ref": reference},
                }
                for kind, reference in mapping.items()
            ],
        }
    match node.get("oneOf"):
        case [{"discriminator": _} as tagged, {"type": "array"} as listed]:
            rest = {key: value for key, value in node.items() if key != "oneOf"}
            return rest | {"if": {"type": "array"}, "then": _helpful(listed), "else": _helpful(tagged)}
    match node.get("anyOf"):
        case [{"discriminator": _} as tagged, {"type": "null"}]:
            rest = {key: value for key, value in node.items() if key != "anyOf"}
            return rest | {"if": {"type": "null"}, "else": _helpful(tagged)}
    renamed = {"anyOf" if key == "oneOf" else key: value for key, value in node.items()}
    return {key: value if key in DATA_KEYS else _helpful(value) for key, value in renamed.items()}


def _optional(node: Any) -> Any:
    """The same blocks with every key optional, except in the conditions that tell kinds apart."""
    if isinstance(node, list):
        return [_optional(item) for item in node]
    if not isinstance(node, dict):
        return node
    part: Schema = {}
    for key, value in node.items():
        if key == "required" and isinstance(value, list):
            continue
        if key == "$ref":
            part[key] = value + PART
        else:
            part[key] = value if key in (*DATA_KEYS, "if") else _optional(value)
    return part


def findings_schema() -> Schema:
    """The document of `dprecipe validate --format json`."""
    text = {"type": "string"}
    position = {"type": "integer", "minimum": 1}
    fields: Schema = {
        "code": {"type": "string", "pattern": "^[YRPT][0-9]{3}$", "examples": sorted(CODES)},
        "severity": {"enum": ["error", "warning"]},
        "file": text,
        "line": position,
        "column": position,
        "path": text | {"description": "dotted path in the recipe; empty for findings about the text"},
        "message": text,
        "remedy": text,
        "accepted": text | {"description": "the reason, where the recipe accepts the warning; else empty"},
    }
    finding = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    return {
        "$schema": DIALECT,
        "title": "dprecipe findings",
        "type": "object",
        "properties": {
            "schema": {"const": "dprecipe.findings/v1"},
            "recipes": {"type": "integer", "minimum": 0},
            "findings": {"type": "array", "items": finding},
        },
        "required": ["schema", "recipes", "findings"],
        "additionalProperties": False,
    }


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "recipe.schema.json": recipe_schema,
    "findings.schema.json": findings_schema,
    "plan.schema.json": plan_schema,
    **{name: make for m in MECHANISMS.values() if m.commands for name, make in m.commands.SCHEMAS.items()},
    "certificate.schema.json": certificate_schema,
}
"""The generators by file name; those of the mechanisms' own commands are theirs."""


def schema_text(name: str) -> str:
    """The file's contents; the same for the same version of dprecipe."""
    return json.dumps(SCHEMAS[name](), indent=2, ensure_ascii=False) + "\n"
