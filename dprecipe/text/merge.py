"""Laying one tree over another: blocks merge, everything else replaces."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dprecipe.faults import Finding
from dprecipe.text.tree import Entry, Mapping, Node, Scalar, Sequence

TAGS = ("kind", "family", "source", "scheme", "schedule", "mode")
"""The keys that state the kind of a block. If one of them changes, the block is replaced as a whole; by an override
that sets the kind alone, but for the keys that both kinds have."""
SharedKeys = Callable[[tuple[str, ...], Mapping], Collection[str]]
"""Keys that a block at a path of the base, and the one that an override makes of it, both have."""
DEFAULTS = {"mode": "flat"}
"""The default kind, for the keys that may be left out."""


def overlay_trees(
    base: Node, over: Node, shared_keys: SharedKeys = lambda path, over: ()
) -> tuple[Node, tuple[Finding, ...]]:
    """Lays `over` over `base`. Neither is changed; values keep their places. `shared_keys`: what remains of a block
    whose kind an override sets by its path.

    Findings are about overrides that name a position a list does not have.
    """
    findings: list[Finding] = []
    return _overlay(base, over, (), shared_keys, findings), tuple(findings)


def _overlay(base: Node, over: Node, path: tuple[str, ...], shared_keys: SharedKeys, findings: list[Finding]) -> Node:
    if not isinstance(over, Mapping):
        return over
    if isinstance(base, Sequence) and over.by_index:
        return _positions(base, over, path, shared_keys, findings)
    if not isinstance(base, Mapping):
        return over
    entries = dict(base.entries)
    if _other_kind(base, over):
        kept = shared_keys(path, over) if over.by_index else ()
        if not kept:
            return over
        entries = {key: entry for key, entry in entries.items() if key in kept}
    for key, entry in over.entries.items():
        below = entries.get(key)
        if below is None:
            entries[key] = entry
            continue
        value = _overlay(below.value, entry.value, (*path, key), shared_keys, findings)
        # A merged block keeps the place it was first written at; a replaced value has a new one.
        merged = isinstance(value, Mapping | Sequence) and value.place == below.value.place
        entries[key] = Entry(below.place if merged else entry.place, value)
    return Mapping(entries, base.place)


def _positions(
    base: Sequence, over: Mapping, path: tuple[str, ...], shared_keys: SharedKeys, findings: list[Finding]
) -> Node:
    items = list(base.items)
    for key, entry in over.entries.items():
        if key.isdecimal() and key.isascii() and len(key) < 6 and int(key) < len(items):
            items[int(key)] = _overlay(items[int(key)], entry.value, (*path, key), shared_keys, findings)
            continue
        known = f"its items are 0 to {len(items) - 1}" if items else "it is empty"
        findings.append(
            Finding(
                "Y132",
                f"the list has no item `{key}`; {known}",
                "name an item, or set the list whole",
                place=entry.place,
            )
        )
    return Sequence(tuple(items), base.place)


def states_split(block: Mapping) -> bool:
    """Returns True if held-out records are cut out of the training source, and have no source of their own.

    `split` may also be a key of their own source, whose value is a word. A number is a mistake, reported as one.
    """
    entry = block.entries.get("split")
    value = None if entry is None else entry.value
    return isinstance(value, Mapping) or (isinstance(value, Scalar) and isinstance(value.value, int | float))


def _other_kind(base: Mapping, over: Mapping) -> bool:
    if states_split(base) != states_split(over) and not over.by_index:
        return states_split(over) or "source" in over.entries or "path" in over.entries
    return any(_changes(base, over, tag) for tag in TAGS if tag in over.entries)


def _changes(base: Mapping, over: Mapping, tag: str) -> bool:
    if tag not in base.entries:
        # One value set by its path changes that value alone.
        return not over.by_index and tag in DEFAULTS and _read_word(over, tag) != DEFAULTS[tag]
    return _read_word(base, tag) != _read_word(over, tag)


def _read_word(mapping: Mapping, tag: str) -> object:
    value = mapping.entries[tag].value
    return value.value if isinstance(value, Scalar) else value
