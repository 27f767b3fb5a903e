"""Unknown keys and words: misspelt, misplaced, or another tool's; and what is suggested instead.

The names other tools and papers use for what a recipe says are in `synonyms.toml` here, and in those of the mechanisms.
A name leads to an idea; an idea leads to a dotted path (or none) and a remedy, since the number often has to be
converted. The same idea may mean another key in recipes of another mechanism.
"""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from dprecipe.contract.table import MECHANISMS
from dprecipe.faults import Finding
from dprecipe.language.words import join_with_or
from dprecipe.recipe.root import PublicRecipe, choose_root
from dprecipe.recipe.vocabulary import (
    Known,
    Spot,
    find_tag,
    has_place,
    list_every_key,
    list_keys,
    list_kinds,
    quote_word,
)
from dprecipe.text.merge import TAGS
from dprecipe.text.spelling import loosen_word, nearest_word
from dprecipe.text.syntax import report_missing_space
from dprecipe.text.tree import Mapping, Node, Path, Scalar, child_node

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


def report_unknown_keys(
    extra: Sequence[Spot], missing: Sequence[Spot], tree: Mapping
) -> tuple[list[Finding], set[Path]]:
    """Returns a finding for each unknown key, and the missing keys that those were meant to be."""
    lacking: dict[Path, list[Spot]] = defaultdict(list)
    for at in missing:
        lacking[at.path[:-1]].append(at)
    findings: list[Finding] = []
    result: set[Path] = set()
    unsolved: dict[Path, list[Spot]] = defaultdict(list)
    for at in extra:
        finding, meant = _explain_key(at, lacking[at.path[:-1]], tree)
        if finding is None:
            unsolved[at.path[:-1]].append(at)
            continue
        findings.append(finding)
        result |= {spot.path for spot in missing if meant and _same_or_above(spot.path, meant)}
    for block, spots in unsolved.items():
        left = [at for at in lacking[block] if at.path not in result]
        if len(spots) == len(left) == 1:  # one unknown key and one missing key: a renamed key
            findings.append(_report_misspelt(spots[0], str(left[0].path[-1])))
            result.add(left[0].path)
        else:
            findings += [_report_unknown(at, tree) for at in spots]
    return findings, result


def _same_or_above(path: Path, meant: str) -> bool:
    dotted = ".".join(map(str, path))
    return meant == dotted or meant.startswith(dotted + ".")


def _explain_key(at: Spot, lacking: Sequence[Spot], tree: Mapping) -> tuple[Finding | None, str]:
    """Returns the finding where the key can be made out, and the dotted path that was meant."""
    key = str(at.path[-1])
    if choose_root(tree) is PublicRecipe and any(known.path == at.dotted for known in list_every_key()):
        return _report_unprotected(at), ""
    known = _remaining_keys(at)
    name, colon, rest = key.partition(":")
    if colon and rest and name in known:
        finding = replace(report_missing_space(name, rest, at.key), path=at.dotted)
        return finding, ".".join(map(str, (*at.path[:-1], name)))
    block = ".".join(map(str, at.path[:-1]))
    # A near neighbour that is missing comes first: `epsilom` is a slip, whatever other tools call things. But what is
    # known to lie inside that neighbour is no slip: `codebook_size` is not `codebook`.
    # Nor is a key that the block has when it is of another kind: `norms` of `mode: per_layer` is not `norm`.
    places = find_elsewhere(key, at, tree)
    kin = any(place.path == ".".join(generalise_path(at.path)) and place.kind for place in places)
    slip = None if kin else nearest_word(key, [str(spot.path[-1]) for spot in lacking])
    other = find_synonym(key, at, tree)
    inside = other is not None and other.path.startswith(f"{block}.{slip}.")
    if slip is not None and not inside:
        return _report_misspelt(at, slip), f"{block}.{slip}" if block else slip
    if other is not None and key != other.path.rpartition(".")[2]:
        return _named_elsewhere(at, other, [name for name in known if is_read(at, name, tree)])
    if places:
        return _report_misplaced(at, places, tree), places[0].path
    # What stands there already is meant only where nothing is missing: `kin` for `min`, beside a `kind`.
    close = nearest_word(key, known) or (None if lacking else nearest_word(key, _written_keys(at)))
    if close is not None:
        return _report_misspelt(at, close), f"{block}.{close}" if block else close
    return None, ""


def _report_unprotected(at: Spot) -> Finding:
    """Returns the finding for a key that only a recipe with a guarantee has."""
    return Finding(
        "R309",
        f"a recipe with mechanism none has no `{at.dotted}`: nobody is protected, and nothing is spent",
        "remove it, or choose a mechanism with a guarantee",
        at.dotted,
        at.key,
    )


def _named_elsewhere(at: Spot, other: Synonym, known: Sequence[str]) -> tuple[Finding, str]:
    """Returns the finding for another tool's name; a key that the block itself could have is nearest."""
    key, name = str(at.path[-1]), other.path.rpartition(".")[2]
    path, remedy = other.path, other.remedy
    here = ".".join(map(str, (*at.path[:-1], name)))
    if name in known and here != path:
        path, remedy = here, f"write `{name}`"
    what = f"this is `{path}` here" if path else "a recipe has no such setting"
    ours = at.path[:-1] == ("mechanism",) and any(known.path == at.dotted for known in list_every_key())
    whose = "another mechanism's" if ours else "another tool's"
    return Finding("R112", f"`{key}` is {whose} name; {what}", remedy, at.dotted, at.key), path


def _report_misplaced(at: Spot, known: Sequence[Known], tree: Mapping) -> Finding:
    here = ".".join(map(str, at.path[:-1]))
    key = str(at.path[-1])
    same = [place.kind for place in known if place.path == ".".join(generalise_path(at.path)) and place.kind]
    if same:
        kinds = join_with_or([quote_word(kind) for kind in same])
        message, remedy = f"unknown key; `{key}` belongs to {kinds}", f"remove it, or write {kinds}"
    else:
        written = [place for place in known if _is_parent_written(tree, place.path)]
        known = written or known  # a block that the recipe has comes before one that few recipes have
        paths = [place.path for place in known]
        parents = " or ".join(quote_word(path.rpartition(".")[0] or "the top") for path in paths)
        message = f"unknown key{f' of {here}' if here else ''}; it belongs under {parents}"
        remedy = f"move it to {' or '.join(paths)}"
        if not any(has_place(tree, path) for path in paths):
            remedy = f"remove it, or {remedy}, where {known[0].kind} stands"
    return Finding("R101", message, remedy, at.dotted, at.key)


def _is_parent_written(tree: Mapping, dotted: str) -> bool:
    """Returns True if the recipe has the block that a path is in."""
    node: Node | None = tree
    for name in dotted.split(".")[:-1]:
        node = None if node is None else child_node(node, int(name) if name.isdecimal() else name)
    return node is not None


def _report_misspelt(at: Spot, meant: str) -> Finding:
    there = ", which is already there" if meant in _written_keys(at) else ""
    return Finding("R101", f"unknown key; did you mean `{meant}`{there}?", f"write `{meant}`", at.dotted, at.key)


def _report_unknown(at: Spot, tree: Mapping) -> Finding:
    known = ", ".join(quote_word(key) for key in _remaining_keys(at) if is_read(at, key, tree))
    remedy = f"remove it; the block can also have {known}" if known else "remove it"
    shown = json.dumps(str(at.path[-1])[:60], ensure_ascii=False)[1:-1]
    return Finding("R101", f"unknown key `{shown}`", remedy, at.dotted, at.key)


def _remaining_keys(at: Spot) -> list[str]:
    """Returns the keys the block could still have."""
    names = [key for block in at.owners for key in list_keys(block)]
    if at.path[:-1] == ():
        names.append("extends")
    written = _written_keys(at)
    return [name for name in dict.fromkeys(names) if name not in written]


def _written_keys(at: Spot) -> list[str]:
    """Returns the keys of the language the block has already."""
    names = {key for block in at.owners for key in list_keys(block)}
    return [key for key in at.owner.entries if key in names] if isinstance(at.owner, Mapping) else []
