"""`extends: base.yaml`: one parent, relative to the file that names it, read as data and overlaid by it."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field

from dprecipe.faults import Finding, Place, RecipeError
from dprecipe.text.load import parse, report_not_a_block
from dprecipe.text.merge import overlay_trees
from dprecipe.text.tree import Mapping, Scalar

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
