"""Suggestions for an unknown word, and the names other tools and papers use for what a recipe says.

The names are in `synonyms.toml` here, and in those of the mechanisms. A name leads to an idea; an idea leads to a
dotted path (or none) and a remedy, since the number often has to be converted. The same idea may mean another key in
recipes of another mechanism.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from dprecipe.contract.table import MECHANISMS
from dprecipe.recipe.vocabulary import Known, Spot, find_tag, has_place, list_every_key, list_keys, list_kinds
from dprecipe.text.merge import TAGS
from dprecipe.text.spelling import loosen_word, nearest_word
from dprecipe.text.tree import Mapping, Path, Scalar

WORDS = "words"
IN_NOISE = "in_a_noise_block"


@dataclass(frozen=True, slots=True)
class Synonym:
    """The path of an idea (empty: none, on purpose), the remedy, and the mechanism whose recipes it is for (empty:
    all)."""

    path: str
    remedy: str
    mechanism: str = ""


@dataclass(frozen=True, slots=True)
class Synonyms:
    """All names, each with what it can mean: those of the mechanisms in the order of their table, then for any."""

    names: AnyMapping[str, tuple[Synonym, ...]]
    in_noise: AnyMapping[str, tuple[Synonym, ...]]
    """Names that mean this in a noise block, and elsewhere something else or nothing."""
    words: AnyMapping[str, tuple[str, ...]]
    """Words other tools use for a value, by our own; of use only where one of ours is possible."""


@cache
def read_synonyms() -> Synonyms:
    """Returns the tables of the language and of every mechanism; read when a recipe is wrong."""
    general = (resources.files("dprecipe.recipe") / "synonyms.toml").read_text("utf-8")
    texts = {**{kind: mechanism.synonyms for kind, mechanism in MECHANISMS.items()}, "": general}
    meanings: dict[str, list[Synonym]] = defaultdict(list)
    ideas: dict[tuple[bool, str], list[str]] = defaultdict(list)
    words: dict[str, list[str]] = defaultdict(list)
    for kind, text in texts.items():
        tables = tomllib.loads(text)
        for word, ours in tables.pop(WORDS, {}).items():
            words[word].append(ours)
        for title, table in tables.items():
            if "remedy" in table:
                for idea in table.get("ideas", [title]):
                    meanings[idea].append(Synonym(table.get("path", ""), table["remedy"], kind))
            for in_noise, name in _names(table):
                ideas[in_noise, name].append(title)
    result = {key: tuple(entry for title in titles for entry in meanings[title]) for key, titles in ideas.items()}
    return Synonyms(
        {name: entries for (in_noise, name), entries in result.items() if not in_noise},
        {name: entries for (in_noise, name), entries in result.items() if in_noise},
        {word: tuple(ours) for word, ours in words.items()},
    )


def _names(table: AnyMapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """Yields the names of an idea, and whether they are meant in a noise block alone."""
    for user, names in table.items():
        if isinstance(names, list) and user != "ideas":
            yield from ((user == IN_NOISE, name) for name in names)


OF_A_STUDENT = frozenset({"batch_size", "augment", "robustness", "semi_supervised"})
"""Keys of `training` that are read where a student learns from released labels, and nowhere else."""


def suggest_word(word: str, known: Collection[str]) -> str | None:
    """Suggests a value as `nearest_word` does: another tool's word counts too."""
    translated = read_synonyms().words.get(word.lower(), ())
    return next((ours for ours in translated if ours in known), None) or nearest_word(word, known, cutoff=0.6)


def find_synonym(key: str, spot: Spot, tree: Mapping) -> Synonym | None:
    """Finds what another tool's name means here: by the mechanism's synonyms, else by those of all mechanisms."""
    known, name = read_synonyms(), loosen_word(key)
    entries = (known.in_noise.get(name, ()) if "noise" in spot.path[:-1] else ()) or known.names.get(name, ())
    kind = _mechanism(tree)
    own = [entry for entry in entries if entry.mechanism == kind]
    general = [entry for entry in entries if not entry.mechanism]
    fitting = [entry for entry in general if (has_place(tree, entry.path) if entry.path else kind is not None)]
    placed = [entry for entry in general if entry.path]
    return next(iter([*own, *fitting, *placed, *entries]), None)


def _mechanism(tree: Mapping) -> str | None:
    """Returns the kind of mechanism that a recipe states or misspells; None if it can't be determined."""
    entry = tree.entries.get("mechanism")
    kind = _read_word(entry.value, "kind") if entry is not None and isinstance(entry.value, Mapping) else None
    return kind if kind is None or kind in MECHANISMS else suggest_word(kind, MECHANISMS)


def is_read(spot: Spot, name: str, tree: Mapping) -> bool:
    """Returns True if this recipe's mechanism reads a key of this block (R306)."""
    return spot.path[:-1] != ("training",) or name not in OF_A_STUDENT or has_place(tree, "mechanism.teachers")


def find_misspelt_tag(spot: Spot) -> str | None:
    """Returns the key that was meant to state a block's kind: misspelt, or holding the name of a kind."""
    tag = find_tag(spot.form.blocks) if spot.form is not None else None
    if tag is None or not isinstance(spot.node, Mapping):
        return None
    known = {key for block in spot.form.blocks for key in list_keys(block)} if spot.form else set()
    strange = [key for key in spot.node.entries if key not in known]
    close = [key for key in strange if nearest_word(key, [tag])]
    names = list_kinds(spot.form.blocks) if spot.form else {}
    named = [key for key in strange if _read_word(spot.node, key) in names]
    return next(iter(close + named), None)


def _read_word(node: Mapping, key: str) -> str | None:
    value = node.entries[key].value if key in node.entries else None
    return value.value if isinstance(value, Scalar) and isinstance(value.value, str) else None


def generalise_path(path: Path) -> list[str]:
    """Returns the steps of a path as `list_every_key` has them: all items of a list are like the first."""
    return ["0" if isinstance(step, int) else step for step in path]


def find_elsewhere(key: str, spot: Spot, tree: Mapping) -> list[Known]:
    """Finds the places where the language has a key of this name: at most three, the nearest first.

    If no block of this recipe can have it, returns the nearest place in a block of another kind."""
    if key in TAGS or key == "recipe":
        return []
    *block, _ = generalise_path(spot.path)
    result: dict[str, Known] = {}
    absent: dict[str, Known] = {}
    for known in list_every_key():
        *above, name = known.path.split(".")
        if name == key:
            here = above == block
            into = result if here or has_place(tree, known.path) else absent
            into.setdefault(f"{known.path} {known.kind}" if here else known.path, known)

    def distance(known: Known) -> tuple[int, int]:
        above = known.path.split(".")[:-1]
        shared = 0
        for ours, theirs in zip(block, above, strict=False):
            if ours != theirs:
                break
            shared += 1
        return (-shared, len(above))

    return sorted(result.values(), key=distance)[:3] or sorted(absent.values(), key=distance)[:1]
