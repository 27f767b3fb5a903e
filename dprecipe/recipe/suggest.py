"""Suggestions for an unknown word."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dprecipe.contract.table import MECHANISMS
from dprecipe.recipe.synonyms import PLACES, Synonym, read_synonyms
from dprecipe.recipe.vocabulary import Known, Spot, find_tag, has_place, list_every_key, list_keys, list_kinds
from dprecipe.text.merge import TAGS
from dprecipe.text.spelling import loosen_word, nearest_word
from dprecipe.text.tree import Mapping, Path, Scalar

OF_A_STUDENT = frozenset({"batch_size", "augment", "robustness", "semi_supervised"})
"""Keys of `training` that are read where a student learns from released labels, and nowhere else."""

PREFIXES = ("num_", "n_", "max_", "total_", "dp_", "target_", "use_", "enable_", "privacy_", "per_example_", "train_")
SUFFIXES = (
    "_target",
    "_budget",
    "_args",
    "_config",
    "_params",
    "_kwargs",
    "_options",
    "_class",
    "_value",
    "_size",
    "_list",
)
"""Words around a name that say nothing about where it belongs."""
TAGS_ELSEWHERE = frozenset(
    {"type", "dtype", "kind", "name", "class", "method", "family", "source", "format", "data_type"}
)
"""Keys by which other tools say the kind of a block."""
UNMOVED = frozenset({"recipe", "name", "access"})
"""Keys that mean too much to be moved to another block: who is protected, and which records are public."""
EXACTLY = frozenset({"none", "record", "insecure"})
"""Words that are never guessed: `noise` is no misspelt `none`, nor `patient_record` a misspelt `record`."""


def suggest_word(word: str, known: Collection[str]) -> str | None:
    """Suggests a value as `nearest_word` does: another tool's word counts too."""
    translated = [ours for ours in read_synonyms().words.get(word.lower(), ()) if ours in known]
    if MECHANISMS.keys() & set(known):  # `off` is no mechanism
        translated = [ours for ours in translated if ours not in EXACTLY]
    return next(iter(translated), None) or nearest_word(word, guessable(word, known), cutoff=0.6)


def guessable(word: str, known: Collection[str]) -> list[str]:
    """Returns the words that a misspelt one may be taken for."""
    return [ours for ours in known if ours not in EXACTLY or ours == loosen_word(word)]


def _shorten(name: str) -> Iterator[str]:
    """Yields a name, then what is left of it without the words that other tools put around theirs."""
    yield name
    for before in ("", *PREFIXES):
        for after in ("", *SUFFIXES):
            inner = name.removeprefix(before).removesuffix(after)
            if len(inner) >= 3 and (name != inner) and (name == f"{before}{inner}{after}"):
                yield inner


def find_synonym(key: str, spot: Spot, tree: Mapping) -> Synonym | None:
    """Finds what another tool's name means here: by the mechanism's synonyms, else by those of all mechanisms; what it
    means in such a block comes before what it means anywhere."""
    known = read_synonyms()
    block = tuple(str(step) for step in generalise_path(spot.path[:-1]) if step != "0")
    kind = _mechanism(tree)
    tables = [known.placed[place] for place, holds in PLACES.items() if holds(block)]
    for name, table in [(name, table) for name in _shorten(loosen_word(key)) for table in (*tables, known.names)]:
        entries = table.get(name, ())
        own = [entry for entry in entries if entry.mechanism == kind]
        general = [entry for entry in entries if not entry.mechanism]
        fitting = [
            entry
            for entry in general
            if (entry.path[:1] == "." or has_place(tree, entry.path) if entry.path else kind is not None)
        ]
        placed = [entry for entry in general if entry.path]
        found = next(iter([*own, *fitting, *placed, *entries]), None)
        if found is not None:
            return found
    return None


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
    alike = [key for key in strange if key in TAGS_ELSEWHERE and _read_word(spot.node, key) is not None]
    return next(iter(close + named + alike), None)


def _read_word(node: Mapping, key: str) -> str | None:
    value = node.entries[key].value if key in node.entries else None
    return value.value if isinstance(value, Scalar) and isinstance(value.value, str) else None


def generalise_path(path: Path) -> list[str]:
    """Returns the steps of a path as `list_every_key` has them: all items of a list are like the first, and all columns
    of a table alike."""
    return [
        "0" if isinstance(step, int) else "<name>" if path[max(index - 1, 0)] == "columns" else step
        for index, step in enumerate(path)
    ]


def _is_near(block: list[str], above: list[str]) -> bool:
    """Returns True if a key may have been meant for another block: one around or beside its own, or a large one. What
    belongs to one column or one step is meant only there."""
    inner = max((index for index, step in enumerate(above) if step in ("<name>", "0")), default=-1)
    return above[: inner + 1] == block[: inner + 1] and (block[:1] in ([], above[:1]) or len(above) <= 2)


def find_elsewhere(key: str, spot: Spot, tree: Mapping) -> list[Known]:
    """Finds the places where the language has a key of this name: at most three, the nearest first.

    If no block of this recipe can have it, returns the nearest place in a block of another kind."""
    if key in TAGS or key in UNMOVED:
        return []
    *block, _ = generalise_path(spot.path)
    result: dict[str, Known] = {}
    absent: dict[str, Known] = {}
    for known in list_every_key():
        *above, name = known.path.split(".")
        if name == key and _is_near(block, above):
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
