"""Laying one tree over another: blocks merge, everything else replaces.

- `extends: base.yaml`: one parent, relative to the file that names it, read as data and overlaid by it.
- `--set a.b=c`: overrides, read by the rules of the recipe itself. All overrides become one tree that is laid over the
  recipe once, so their order does not matter, and two that set the same value are refused rather than silently ranked.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from dprecipe.faults import Finding, Place, RecipeError
from dprecipe.text.load import parse, report_not_a_block
from dprecipe.text.tree import Entry, Mapping, Node, Scalar, Sequence

TAGS = ("kind", "family", "form", "source", "scheme", "schedule", "mode")
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


KEY = "extends"
MAX_PARENTS = 4

OpenParent = Callable[[str, str], str]
"""(file, name as written) -> text; raises `RecipeError` with one finding where there is none."""


@dataclass(slots=True)
class Chain:
    """A recipe and its parents, as one tree. The tree is None where a text could not be read to its end."""

    tree: Mapping | None = None
    parents: list[tuple[str, str]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def read_chain(text: str, file: str, open_parent: OpenParent) -> Chain:
    """Reads a text and every parent it extends, nearest first, and lays each over its parent."""
    chain = Chain()
    trees: list[Mapping] = []
    while True:
        chain.texts[file] = text
        root, findings = parse(text, file)
        chain.findings.extend(findings)
        if not isinstance(root, Mapping):
            if not findings:
                chain.findings.append(report_not_a_block(root, file))
            return chain
        entry = root.entries.pop(KEY, None)
        trees.append(root)
        if entry is None:
            break
        step = _parent(entry.value, file, chain, open_parent)
        if step is None:
            return chain
        file, text = step
    tree = trees.pop()
    while trees:
        merged, _ = overlay_trees(tree, trees.pop())
        # Two blocks make a block.
        tree = merged if isinstance(merged, Mapping) else tree
    chain.tree = tree
    return chain


def _parent(value: object, file: str, chain: Chain, open_parent: OpenParent) -> tuple[str, str] | None:
    """Returns the next parent's file and text; None, and a finding, where the chain ends wrongly."""
    if not isinstance(value, Scalar) or not isinstance(value.value, str) or not value.value:
        place = getattr(value, "place", Place(file, 1, 1))
        chain.findings.append(
            Finding("Y120", "`extends` names one file", "write the path of one recipe", path=KEY, place=place)
        )
        return None
    name = value.value
    problem = _wrong_name(name)
    if problem:
        chain.findings.append(
            Finding(
                "Y120",
                problem,
                "name a file by its path from this one's folder: base.yaml, ../base.yaml",
                path=KEY,
                place=value.place,
            )
        )
        return None
    parent = posixpath.normpath(posixpath.join(posixpath.dirname(file), name))
    if parent in {posixpath.normpath(seen) for seen in chain.texts}:
        chain.findings.append(
            Finding("Y121", f"{name} extends this recipe in turn", "break the circle", path=KEY, place=value.place)
        )
        return None
    if len(chain.parents) >= MAX_PARENTS:
        chain.findings.append(
            Finding(
                "Y122",
                f"a recipe has at most {MAX_PARENTS} parents in a row",
                "merge some of them into one file",
                path=KEY,
                place=value.place,
            )
        )
        return None
    try:
        text = open_parent(file, name)
    except RecipeError as error:
        reason = error.findings[0]
        chain.findings.append(
            Finding("Y120", f"{parent}: {reason.message}", reason.remedy, path=KEY, place=value.place)
        )
        return None
    chain.parents.append((name, text))
    return parent, text


def _wrong_name(name: str) -> str | None:
    if "://" in name:
        return "`extends` names a file; nothing is fetched from a network"
    if name.startswith(("/", "\\", "~")) or name[1:2] == ":":
        return "`extends` is relative to the file it stands in"
    return None


def name_override(index: int) -> str:
    """Returns the name of the override at a position, for findings and origins: `--set #2`."""
    return f"--set #{index + 1}"


def read_overrides(overrides: Iterable[str]) -> tuple[Mapping, tuple[Finding, ...]]:
    """Returns one tree of all overrides, every place in a file called `--set #n`."""
    findings: list[Finding] = []
    root = Mapping({}, Place(name_override(0), 1, 1), by_index=True)
    for index, override in enumerate(overrides):
        _read_one(override, name_override(index), root, findings)
    return root, tuple(findings)


def _read_one(override: str, file: str, root: Mapping, findings: list[Finding]) -> None:
    path, equals, text = override.partition("=")
    steps = path.split(".")
    if not equals or not all(steps) or path != path.strip():
        message = f"`{override}` is not `path=value`" if len(override) < 80 else "it is not `path=value`"
        findings.append(
            Finding("Y130", message, "write it like training.epochs=3", place=Place(file, 1, 1, max(1, len(path))))
        )
        return
    if steps[0] == "extends":
        findings.append(
            Finding(
                "Y132",
                "`extends` can't be overridden",
                "write another recipe that extends the other parent",
                place=Place(file, 1, 1, len(path)),
            )
        )
        return
    value, wrong = parse(text, file, column=len(path) + 2)
    findings.extend(wrong)
    if value is None:
        if wrong:
            return
        value = Scalar(None, Place(file, 1, len(path) + 2))
    _insert(root, steps, value, file, findings)


def _insert(root: Mapping, steps: list[str], value: Node, file: str, findings: list[Finding]) -> None:
    block, column = root, 1
    for depth, step in enumerate(steps[:-1]):
        place = Place(file, 1, column, len(step))
        entry = block.entries.get(step)
        if entry is None:
            entry = Entry(place, Mapping({}, place, by_index=True))
            block.entries[step] = entry
        if not isinstance(entry.value, Mapping) or not entry.value.by_index:
            findings.append(_twice(".".join(steps[: depth + 1]), entry.place, place))
            return
        block, column = entry.value, column + len(step) + 1
    place = Place(file, 1, column, len(steps[-1]))
    there = block.entries.get(steps[-1])
    if there is not None:
        findings.append(_twice(".".join(steps), there.place, place))
        return
    block.entries[steps[-1]] = Entry(place, value)


def _twice(path: str, first: Place, second: Place) -> Finding:
    return Finding("Y131", f"`{path}` is set already by {first.file}", "leave one of the two", path=path, place=second)
