"""Blanks of a recipe: values `FILL_IN`, which `dprecipe init --private` leaves to be declared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dprecipe.faults import Finding
from dprecipe.recipe.mismatch import BLANK, find_mismatch
from dprecipe.recipe.vocabulary import find_spot
from dprecipe.text.tree import Mapping, Node, Path, Scalar, Sequence

LEFT_OPEN = "left open: expected "
"""Start of a finding's message about a blank; what is expected follows."""


def is_blank(finding: Finding) -> bool:
    """Returns True for the finding of a value that is left open."""
    return finding.code == "R103" and finding.message.startswith(LEFT_OPEN)


def walk_scalars(node: Node, path: Path = ()) -> Iterator[tuple[Path, Scalar]]:
    """Yields every single value of a tree with its path."""
    if isinstance(node, Scalar):
        yield path, node
    elif isinstance(node, Mapping):
        for key, entry in node.entries.items():
            yield from walk_scalars(entry.value, (*path, key))
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from walk_scalars(item, (*path, index))


def find_blanks(tree: Mapping, known: Iterable[Finding] = ()) -> list[Finding]:
    """Returns the findings of blanks that stand where a text may stand, and so are of the right type; without those at
    the places of `known` findings. A text `FILL_IN` that is meant is written in quotes."""
    places = {finding.place for finding in known}
    blanks = [
        (path, node)
        for path, node in walk_scalars(tree)
        if node.value == BLANK and not node.quoted and node.place not in places
    ]
    spots = [find_spot(tree, path) for path, _ in blanks]
    return [find_mismatch(at) for at in spots if at.form is not None and not at.form.anything]


def erase_blanks(value: Any) -> Any:
    """Returns the values of a recipe with None instead of each blank."""
    if isinstance(value, dict):
        return {key: erase_blanks(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [erase_blanks(inner) for inner in value]
    return None if value == BLANK else value
