"""The JSON Schema of recipes, as editors read it: it completes keys and words, explains them, and marks mistakes.

Editors work on text that is not finished. So a union is written as `if kind is … then …`, a recipe that extends another
may be a part, and every explanation leads to its page.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from dprecipe.contract.document import DIALECT
from dprecipe.contract.table import MECHANISMS
from dprecipe.recipe.read import read_text
from dprecipe.recipe.root import PublicRecipe, Recipe
from dprecipe.recipe.starters import MECHANISMS as STARTERS
from dprecipe.recipe.starters import make_starter

Schema = dict[str, Any]
ADDRESS = "https://json.schemastore.org/dprecipe.json"
"""The schema's name, by which editors know it once SchemaStore lists it."""
PAGE = "https://github.com/OWNER/dprecipe/blob/main/docs/reference/recipe.md"
"""The page of all keys. OWNER stands for whose copy it is, as in docs/how-to/pull-requests.md."""
TOP, MERGED = "top-level", "how-recipes-and-overrides-are-merged"
"""Sections of that page."""
PART_SUFFIX = ".part"
INHERITING = frozenset(("test", "public"))
"""Sources that take over from `train` what they do not state."""
DATA_KEYS = ("const", "enum", "default", "examples", "markdownEnumDescriptions")


def recipe_schema() -> Schema:
    """Returns the schema for editors: a complete recipe, or the partial one of a recipe with `extends`; with privacy,
    or without (`mechanism.kind: none`)."""
    definitions: Schema = {}
    for root in (Recipe, PublicRecipe):
        full = root.model_json_schema(by_alias=True, mode="validation")
        blocks = full.pop("$defs") | {root.__name__: full}
        definitions |= {name: _split_unions(body, blocks) for name, body in blocks.items()}
    _explain(definitions)
    parts = {name + PART_SUFFIX: _make_optional(body, definitions) for name, body in deepcopy(definitions).items()}
    for body in definitions.values():
        for role in INHERITING & body.get("properties", {}).keys() if "train" in body.get("properties", {}) else ():
            body["properties"][role] = _make_optional(body["properties"][role], definitions)
    for root in (Recipe, PublicRecipe):
        parts[root.__name__ + PART_SUFFIX]["properties"]["extends"] = {
            "type": "string",
            "minLength": 1,
            **_word("the recipe that this one changes, relative to this file", MERGED),
        }
    return {
        "$schema": DIALECT,
        "$id": ADDRESS,
        "title": "dprecipe recipe",
        **_word("What is learned, and how much privacy may be spent (language dprecipe/v1).", TOP),
        "examples": [_read_starter(STARTERS[0])],
        "defaultSnippets": [_make_snippet(mechanism) for mechanism in STARTERS],
        "if": {"required": ["extends"]},
        "then": _choose_root(PART_SUFFIX),
        "else": _choose_root(""),
        "$defs": definitions | parts,
    }


def _choose_root(suffix: str) -> Schema:
    """Chooses a recipe without privacy where the mechanism's kind is `none`, else one with privacy.

    Kinds with privacy are asked for first: an editor that completes a kind takes the first branch that may still hold.
    """

    def has_kind(kind: Schema) -> Schema:
        block = {"title": "Mechanism", "properties": {"kind": {"title": "Kind", **kind}}, "required": ["kind"]}
        return {"properties": {"mechanism": block}, "required": ["mechanism"]}

    private = {"$ref": f"#/$defs/{Recipe.__name__}{suffix}"}
    public = {"$ref": f"#/$defs/{PublicRecipe.__name__}{suffix}"}
    return {
        "if": has_kind({"enum": list(MECHANISMS)}),
        "then": private,
        "else": {"if": has_kind({"const": "none"}), "then": public, "else": private},
    }


def _split_unions(node: Any, blocks: Schema) -> Any:
    """Rewrites unions by a tag, or of a word and a number, as `if … then …`, so that an editor reports on one kind, not
    on all of them; each kind is explained by its own block of `blocks`."""
    if isinstance(node, list):
        return [_split_unions(item, blocks) for item in node]
    if not isinstance(node, dict):
        return node
    if "discriminator" in node and "oneOf" in node:
        tag, mapping = node["discriminator"]["propertyName"], node["discriminator"]["mapping"]
        default = node["discriminator"].get("default")
        rest = {key: value for key, value in node.items() if key not in ("discriminator", "oneOf")}
        return rest | {
            "type": "object",
            "properties": {tag: _describe_kinds(tag, mapping, blocks)},
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
        case [{"const": str()} as word, {"type": "number" | "integer"} as number]:
            rest = {key: value for key, value in node.items() if key != "oneOf"}
            # An editor completes an example, and no word of a branch.
            return rest | {"if": {"type": "string"}, "then": word, "else": number, "examples": [word["const"]]}
        case [{"discriminator": _} as tagged, {"type": "array"} as listed]:
            rest = {key: value for key, value in node.items() if key != "oneOf"}
            return rest | {
                "if": {"type": "array"},
                "then": _split_unions(listed, blocks),
                "else": _split_unions(tagged, blocks),
            }
        case [{"discriminator": _} as tagged, {"$ref": _} as cut]:  # held-out records: a source, or a split
            split = {"type": "object", "properties": {"split": {"type": "object"}}, "required": ["split"]}
            return {"if": split, "then": cut, "else": _split_unions(tagged, blocks)}
    match node.get("anyOf"):
        case [{"discriminator": _} as tagged, {"type": "null"}]:
            rest = {key: value for key, value in node.items() if key != "anyOf"}
            return rest | {"if": {"type": "null"}, "else": _split_unions(tagged, blocks)}
        case [{"oneOf": [{"discriminator": _}, {"$ref": _}]} as either, {"type": "null"}]:
            rest = {key: value for key, value in node.items() if key != "anyOf"}
            return rest | {"if": {"type": "null"}, "else": _split_unions(either, blocks)}
    renamed = {"anyOf" if key == "oneOf" else key: value for key, value in node.items()}
    return {key: value if key in DATA_KEYS else _split_unions(value, blocks) for key, value in renamed.items()}


def _describe_kinds(tag: str, mapping: Mapping[str, str], blocks: Schema) -> Schema:
    """Returns the schema of a tag: its words, and what each of them stands for."""
    explained = [blocks[reference.rpartition("/")[2]].get("description", "") for reference in mapping.values()]
    return {"title": tag.title(), "enum": list(mapping), "markdownEnumDescriptions": list(map(_first_line, explained))}


def _first_line(text: str) -> str:
    """Returns the first paragraph of a docstring."""
    return " ".join(text.partition("\n\n")[0].split())


def _explain(definitions: Schema) -> None:
    """Adds to every description the same in Markdown, with a link to the section of the page that has the key."""
    sections = _find_sections(definitions)
    for name, body in definitions.items():
        _add_markdown(body, sections[name])
    for key, body in definitions[Recipe.__name__]["properties"].items():
        if _reach(body, definitions):
            _add_markdown(body, key)


def _find_sections(definitions: Schema) -> dict[str, str]:
    """Returns the section of each block: of the key or the mechanism that has it, or of all mechanisms."""
    sections = {Recipe.__name__: TOP}
    for key, body in definitions[Recipe.__name__]["properties"].items():
        if key != "mechanism":
            sections |= dict.fromkeys(_reach(body, definitions) - sections.keys(), key)
    owners: dict[str, list[str]] = {}
    for kind, mechanism in MECHANISMS.items():
        for name in _reach({"$ref": f"#/$defs/{mechanism.block.__name__}"}, definitions) - sections.keys():
            owners.setdefault(name, []).append(kind)
    sections |= {name: f"kind-{kinds[0]}" if len(kinds) == 1 else "mechanism" for name, kinds in owners.items()}
    return dict.fromkeys(definitions, "kind-none") | sections


def _reach(node: Any, definitions: Schema) -> set[str]:
    """Returns the names of the blocks that a schema leads to."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        match waiting.pop():
            case {"$ref": str(reference)} if (name := reference.rpartition("/")[2]) not in found:
                found.add(name)
                waiting.append(definitions[name])
            case dict() as block:
                waiting += block.values()
            case list() as items:
                waiting += items
    return found


def _add_markdown(node: Any, section: str) -> None:
    if isinstance(node, list):
        for item in node:
            _add_markdown(item, section)
    elif isinstance(node, dict):
        if isinstance(node.get("description"), str):
            node |= _word(node["description"], section)
        for key, value in node.items():
            if key not in DATA_KEYS:
                _add_markdown(value, section)


def _word(text: str, section: str) -> Schema:
    """Returns a description, and the same in Markdown with a link to its section."""
    return {"description": text, "markdownDescription": f"{text}\n\n[The recipe, key by key]({PAGE}#{section})"}


def _read_starter(mechanism: str) -> Any:
    """Returns the starter recipe of a mechanism, as values of JSON's types."""
    loaded = read_text(make_starter(mechanism, "digits", f"my-{mechanism}"))
    return loaded.recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _make_snippet(mechanism: str) -> Schema:
    text = f"A whole recipe with the mechanism `{mechanism}`, on embedded digits."
    return {"label": f"dprecipe: {mechanism}", "description": text, "body": _read_starter(mechanism)}


def _make_optional(node: Any, definitions: Schema) -> Any:
    """Returns the same blocks with every key optional, except in the conditions on a kind. A block that states no kind
    has keys of any."""
    if isinstance(node, list):
        return [_make_optional(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    part: Schema = {}
    for key, value in node.items():
        if key == "required" and isinstance(value, list):
            continue
        if key == "$ref":
            part[key] = value + PART_SUFFIX
        else:
            part[key] = value if key in (*DATA_KEYS, "if") else _make_optional(value, definitions)
    match node.get("allOf"):
        case [{"then": {"$ref": str()}}, *_] as kinds:
            blocks = [definitions[kind["then"]["$ref"].rpartition("/")[2]] for kind in kinds]
            part["propertyNames"] = {"enum": sorted({key for block in blocks for key in block["properties"]})}
    return part
