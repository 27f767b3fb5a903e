"""All errors in a recipe's structure: a misspelt kind does not hide the other errors of its block."""

from __future__ import annotations

import json

from pydantic import ValidationError

from dprecipe.faults import Finding
from dprecipe.recipe.places import Spot, find_spot
from dprecipe.recipe.root import choose_root
from dprecipe.recipe.screening import screen_recipe
from dprecipe.recipe.suggest import find_misspelt_tag, suggest_word
from dprecipe.recipe.vocabulary import find_tag, list_kinds
from dprecipe.recipe.wording import word_error
from dprecipe.text.tree import Entry, Mapping, Node, Path, Scalar, Sequence, to_plain

ROUNDS = 5


def explain_errors(error: ValidationError, tree: Mapping) -> list[Finding]:
    """Returns every finding about a tree that did not validate.

    The validator does not look inside a block of an unknown kind. If the kind is only misspelt, the block is validated
    again as the kind that was meant."""
    findings, handled = screen_recipe(tree)
    results = [*findings, *word_error(error, tree, handled)]
    for _ in range(ROUNDS):
        repaired = _repair_blocks(error, tree)
        if not repaired:
            break
        for path, block in repaired.items():
            tree = _insert_block(tree, path, block)
        try:
            choose_root(tree).model_validate_json(json.dumps(to_plain(tree)))
            break
        except ValidationError as next_error:
            error = next_error
        # Outside the repaired blocks the errors are the same as before.
        insides = tuple(".".join(map(str, path)) + "." for path in repaired)
        results += [finding for finding in word_error(error, tree, handled) if finding.path.startswith(insides)]
    return results


def _repair_blocks(error: ValidationError, tree: Mapping) -> dict[Path, Mapping]:
    """Returns every block of a misspelt kind, with the kind that was meant."""
    repaired: dict[Path, Mapping] = {}
    for item in error.errors(include_url=False, include_input=False):
        if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
            at = find_spot(tree, item["loc"])
            block = _repair_block(at)
            if block is not None:
                repaired[at.path] = block
    return repaired


def _repair_block(at: Spot) -> Mapping | None:
    tag = find_tag(at.form.blocks) if at.form is not None else None
    if tag is None or at.form is None or not isinstance(at.node, Mapping):
        return None
    written = find_misspelt_tag(at) if tag not in at.node.entries else tag
    if written is None:
        return None
    value = at.node.entries[written].value
    name = value.value if isinstance(value, Scalar) else None
    names = list_kinds(at.form.blocks)
    kind = name if name in names else suggest_word(name, list(names)) if isinstance(name, str) else None
    if kind is None:
        return None
    entries = {
        (tag if key == written else key): Entry(
            entry.place, Scalar(kind, value.place) if key == written else entry.value
        )
        for key, entry in at.node.entries.items()
    }
    return Mapping(entries, at.node.place)


def _insert_block(tree: Mapping, path: Path, block: Mapping) -> Mapping:
    inserted = _replace_node(tree, path, block)
    return inserted if isinstance(inserted, Mapping) else tree


def _replace_node(node: Node, path: Path, value: Node) -> Node:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(node, Mapping):
        entries = dict(node.entries)
        entry = entries[str(step)]
        entries[str(step)] = Entry(entry.place, _replace_node(entry.value, rest, value))
        return Mapping(entries, node.place)
    if isinstance(node, Sequence):
        items = list(node.items)
        items[int(step)] = _replace_node(items[int(step)], rest, value)
        return Sequence(tuple(items), node.place)
    return node
