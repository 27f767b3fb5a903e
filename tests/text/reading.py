"""Texts that must be right, and everything in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dprecipe.cli.render import as_lines
from dprecipe.faults import Finding, Place, RecipeError
from dprecipe.text.load import parse, report_not_a_block
from dprecipe.text.tree import Mapping, Node, Path, Sequence


def load(text: str, file: str) -> Mapping:
    """Read one block of keys.

    Raises:
        RecipeError: with every finding about the text.
    """
    root, findings = parse(text, file)
    if isinstance(root, Mapping) and not findings:
        return root
    raise RecipeError(findings or (report_not_a_block(root, file),), {file: text})


def show(findings: Iterable[Finding], texts: dict[str, str]) -> str:
    """What `validate` prints of findings."""
    return "".join(f"{line}\n" for line in as_lines(tuple(findings), texts))


def walk_nodes(node: Node, path: Path = ()) -> Iterator[tuple[Path, Place, Node]]:
    """Every key and list item below a node: its path, the place of its key, its value."""
    if isinstance(node, Mapping):
        for key, entry in node.entries.items():
            yield (*path, key), entry.place, entry.value
            yield from walk_nodes(entry.value, (*path, key))
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield (*path, index), item.place, item
            yield from walk_nodes(item, (*path, index))
