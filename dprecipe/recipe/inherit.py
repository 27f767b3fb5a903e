"""Inheritance from `data.train`, where everything that a recipe's sources have in common is written once.

Held-out and public records of the same kind of source have the columns, the label and the shape of the training records
where they state none of their own. The source lists the keys that describe records rather than files.
"""

from __future__ import annotations

from collections.abc import Iterable

from dprecipe.data.sources.table import SOURCES, kind_of
from dprecipe.faults import Finding
from dprecipe.text.merge import states_split
from dprecipe.text.tree import Entry, Mapping, Scalar

ROLES = ("test", "public")


def inherit_records(tree: Mapping) -> Mapping:
    """Returns the recipe, with what `data.test` and `data.public` take over from `data.train`. Values keep their
    places.
    """
    data = tree.entries.get("data")
    if data is None or not isinstance(data.value, Mapping):
        return tree
    entries = dict(data.value.entries)
    train = entries.get("train")
    if train is None or not isinstance(train.value, Mapping):
        return tree
    for role in ROLES:
        entry = entries.get(role)
        if entry is not None and isinstance(entry.value, Mapping) and not states_split(entry.value):
            entries[role] = Entry(entry.place, _completed(entry.value, train.value, labelled=role == "test"))
    whole = Entry(data.place, Mapping(entries, data.value.place))
    return Mapping({**tree.entries, "data": whole}, tree.place)


def drop_consequences(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings, without keys that other sources lack because something is wrong with `data.train`."""
    findings = list(findings)
    own = [finding for finding in findings if name_origin(finding.path) == finding.path]
    if not any(finding.path.startswith("data.") for finding in own):
        return findings
    shared = {key for pair in SOURCES for block in pair for key in block.shared}
    return [f for f in findings if f in own or f.code != "R102" or f.path.rpartition(".")[2] not in shared]


def name_origin(path: str) -> str:
    """Returns the path of a value in `data.train`, if it is one in another source that may have been taken over from
    there.
    """
    for role in ROLES:
        if path.startswith(f"data.{role}."):
            return f"data.train.{path.removeprefix(f'data.{role}.')}"
    return path


def _completed(block: Mapping, train: Mapping, *, labelled: bool) -> Mapping:
    source = _read_source(train)
    if _read_source(block) not in (source, None):
        return block
    shared = next((pair[0 if labelled else 1].shared for pair in SOURCES if kind_of(pair[0]) == source), ())
    taken = {key: train.entries[key] for key in ("source", *shared) if key in train.entries}
    return Mapping({**taken, **block.entries}, block.place)


def _read_source(block: Mapping) -> object:
    """Returns the kind of a source; None where it is not stated."""
    entry = block.entries.get("source")
    return entry.value.value if entry is not None and isinstance(entry.value, Scalar) else None
