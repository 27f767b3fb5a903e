"""The stricter of two values, so that no remedy weakens what an author has written."""

from __future__ import annotations

from dprecipe.text.dump import dump_inline
from dprecipe.text.tree import Json, Mapping, Node, Scalar, Sequence, child_node, to_plain

SMALLER = frozenset(
    {"budget.epsilon", "budget.delta", "mechanism.clip.norm", "mechanism.codebook.norm", "mechanism.clip.count_noise"}
)
"""Keys whose smaller number protects more, or changes the released sum less."""
LARGER = frozenset(
    {
        "mechanism.noise.multiplier",
        "mechanism.aggregator.noise.multiplier",
        "mechanism.aggregator.selection.noise.multiplier",
    }
)
"""Keys whose larger number protects more."""
PROTECTING = SMALLER | LARGER | {"budget.neighbouring", "data.unit.max_records"}
"""Keys where two values that can't be ranked are the author's to choose between."""
EITHER = {"training.steps": "training.epochs", "training.epochs": "training.steps"}
"""Keys of which a recipe has one."""
MAX_SHOWN = 60


def is_stricter(path: str, value: Json, other: Json) -> bool | None:
    """Returns True if a value protects more than another at a path, False if less; None if they can't be ranked.

    A number is stricter than `auto`: ε is then bounded, and noise is at least what the author has written."""
    if path in SMALLER or path in LARGER:
        if _is_number(value) and _is_number(other):
            return (value < other) == (path in SMALLER)  # type: ignore[operator]
        return (
            True if other == "auto" and _is_number(value) else False if value == "auto" and _is_number(other) else None
        )
    if path == "data.unit.max_records" and _is_number(value) and _is_number(other):
        return None  # fewer records of a unit are used, or more noise is needed: neither protects more
    if path == "data.unit" and "record" in (value, other):
        return value != "record"
    if path.endswith(".access") and "public" in (value, other):
        return value != "public"
    return None


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def settle_double(tree: Mapping, path: str, value: Node) -> str | None:
    """Returns the remedy for a value whose right path has a value already: the stricter one stays. None if the path has
    none."""
    there = find_exactly(tree, path)
    if there is None and path in EITHER and (other := find_exactly(tree, EITHER[path])) is not None:
        return f"remove it: {EITHER[path]} is {show_value(other)} already"
    if there is None:
        return None
    new, old = to_plain(value), to_plain(there)
    if new == old:
        return f"remove it: {path} says the same"
    stricter = is_stricter(path, new, old)
    shown = show_value(there)
    if stricter is None and path in PROTECTING:
        return f"keep the one that protects more, as {path}, and remove the other"
    if stricter:
        return f"set {path} to {show_value(value) or 'this'}, the stricter of the two, and remove it here"
    if stricter is False:
        return f"remove it: {path} is {shown or 'there already'}, the stricter of the two"
    return f"remove it: {path} is {shown} already" if shown else f"remove it: {path} is there already"


def find_exactly(tree: Mapping, path: str) -> Node | None:
    """Returns the node that is written at a dotted path; None if nothing is."""
    node: Node | None = tree
    for name in path.split("."):
        node = None if node is None else child_node(node, int(name) if name.isdecimal() else name)
    return None if isinstance(node, Scalar) and node.value is None else node


def show_value(node: Node) -> str:
    """Returns a value as written, with all its digits; empty if it is too long for a message."""
    text = _write_flow(node)
    return text if len(text) <= MAX_SHOWN else ""


def _write_flow(node: Node) -> str:
    if isinstance(node, Mapping):
        inside = ", ".join(f"{dump_inline(key)}: {_write_flow(entry.value)}" for key, entry in node.entries.items())
        return f"{{{inside}}}"
    if isinstance(node, Sequence):
        return f"[{', '.join(map(_write_flow, node.items))}]"
    return node.text or dump_inline(node.value)
