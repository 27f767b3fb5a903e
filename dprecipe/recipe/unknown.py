"""Unknown keys: misspelt, misplaced, or another tool's."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from dprecipe.faults import Finding
from dprecipe.language.words import join_with_or
from dprecipe.recipe.root import PublicRecipe, choose_root
from dprecipe.recipe.suggest import Synonym, find_elsewhere, find_synonym, generalise_path, is_read
from dprecipe.recipe.vocabulary import Known, Spot, has_place, list_every_key, list_keys, quote_word
from dprecipe.text.spelling import nearest_word
from dprecipe.text.syntax import report_missing_space
from dprecipe.text.tree import Mapping, Node, Path, child_node


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
