"""Unknown keys: misspelt, misplaced, or another tool's."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from dprecipe.faults import Finding
from dprecipe.recipe.doubles import Explained, settle_doubles
from dprecipe.recipe.elsewhere import (
    MEANING,
    can_move,
    remaining_keys,
    report_misplaced,
    report_misspelt,
    report_synonym,
    written_keys,
)
from dprecipe.recipe.root import PublicRecipe, choose_root
from dprecipe.recipe.stricter import find_exactly, show_value
from dprecipe.recipe.suggest import TAGS_ELSEWHERE, find_elsewhere, find_synonym, generalise_path, guessable, is_read
from dprecipe.recipe.vocabulary import Known, Spot, can_hold, find_tag, has_place, list_every_key, quote_word
from dprecipe.text.spelling import nearest_word
from dprecipe.text.syntax import report_missing_space
from dprecipe.text.tree import Mapping, Path

PROTECTING = ("budget", "mechanism", "mechanism.clip", "mechanism.noise", "mechanism.codebook")
"""Blocks whose values decide how much is protected."""


def report_unknown_keys(
    extra: Sequence[Spot], missing: Sequence[Spot], tree: Mapping
) -> tuple[list[Finding], set[Path]]:
    """Returns a finding for each unknown key, and the missing keys that those were meant to be."""
    lacking: dict[Path, list[Spot]] = defaultdict(list)
    for at in missing:
        lacking[at.path[:-1]].append(at)
    known: list[Explained] = []
    result: set[Path] = set()
    unsolved: dict[Path, list[Spot]] = defaultdict(list)
    # Of two names for one key the first in the recipe stays; pydantic's order of errors differs by version.
    for at in sorted(extra, key=lambda at: (at.place.line, at.place.column)):
        explained, meant = _explain_key(at, lacking[at.path[:-1]], tree)
        if not explained:
            unsolved[at.path[:-1]].append(at)
            continue
        known += explained
        begins = explained[0].finding.remedy.startswith("write `min: ")
        ends = {f"{meant.removesuffix('.min')}.max"} if begins else set()
        result |= {spot.path for spot in missing for path in {meant} | ends if path and _same_or_above(spot.path, path)}
    findings = settle_doubles(known)
    for block, spots in unsolved.items():
        left = [at for at in lacking[block] if at.path not in result]
        if len(spots) == len(left) == 1 and _could_be(spots[0], left[0]):  # a renamed key
            findings.append(report_misspelt(spots[0], str(left[0].path[-1]), tree))
            result.add(left[0].path)
        else:
            findings += [_report_unknown(at, tree) for at in spots]
    return findings, result


def _could_be(strange: Spot, missing: Spot) -> bool:
    """Returns True if the value of an unknown key has the form of a missing one."""
    return strange.node is None or missing.form is None or can_hold(missing.form, strange.node)


def _same_or_above(path: Path, meant: str) -> bool:
    dotted = ".".join(map(str, path))
    return meant == dotted or meant.startswith(dotted + ".")


def _explain_key(at: Spot, lacking: Sequence[Spot], tree: Mapping) -> tuple[list[Explained], str]:
    """Returns the findings where the key can be made out, and the dotted path that was meant."""
    key = str(at.path[-1])
    if choose_root(tree) is PublicRecipe and any(known.path == at.dotted for known in list_every_key()):
        return _explained(_report_unprotected(at), at)
    known = remaining_keys(at)
    name, colon, rest = key.partition(":")
    if colon and rest and name in known:
        finding = replace(report_missing_space(name, rest, at.key), path=at.dotted)
        return _explained(finding, at, ".".join(map(str, (*at.path[:-1], name))))
    block = ".".join(map(str, at.path[:-1]))
    # A near neighbour that is missing comes first: `epsilom` is a slip, whatever other tools call things. But what is
    # known to lie inside that neighbour is no slip: `codebook_size` is not `codebook`.
    # Nor is a key that the block has when it is of another kind: `norms` of `mode: per_layer` is not `norm`.
    # Nor is another tool's name for something else: `accounting` is not `account`.
    places = find_elsewhere(key, at, tree)
    if isinstance(at.node, Mapping) and (twin := _find_twin(at, tree)):
        return _explain_inside(at, at.node, tree, twin), ""
    here = generalise_path(at.path)
    kin = any(place.path == ".".join(here) and place.kind for place in places)
    slip = None if kin else nearest_word(key, [str(spot.path[-1]) for spot in lacking])
    other = find_synonym(key, at, tree)
    inside = other is not None and (other.path.startswith(f"{block}.{slip}.") or "." in other.path or not other.path)
    if slip is not None and not inside:
        return _explained(report_misspelt(at, slip, tree), at, f"{block}.{slip}" if block else slip)
    near = [place for place in places if len(here) > 2 and place.path.split(".")[: len(here) - 1] == here[:-1]]
    fits = (
        other is not None
        and other.path != at.dotted
        and (not kin or (block in MEANING and has_place(tree, other.path)))
    )
    if other is not None and fits and (kin or not any(can_move(place, at, tree) for place in near)):
        if other.value == "open" and isinstance(at.node, Mapping) and at.node.entries:
            return _explain_inside(at, at.node, tree), ""
        finding, path = report_synonym(at, other, [name for name in known if is_read(at, name, tree)], tree)
        return _explained(finding, at, path)
    tag = find_tag(at.owners)
    if tag is not None and key in TAGS_ELSEWHERE and isinstance(at.owner, Mapping) and tag in at.owner.entries:
        return _explained(_report_second_tag(at, tag, at.owner), at)
    close = nearest_word(key, guessable(key, known))
    # The plural of a key that is elsewhere is meant here: `filter` for `filters` of patches is not `training.filter`.
    if places and (close is None or close.removesuffix("s") != key.removesuffix("s")):
        return _explained(report_misplaced(at, places, tree), at, places[0].path)
    # What stands there already is meant only where nothing is missing: `kin` for `min`, beside a `kind`.
    close = close or (None if lacking else nearest_word(key, written_keys(at)))
    if close is not None:
        return _explained(report_misspelt(at, close, tree), at, f"{block}.{close}" if block else close)
    return [], ""


def _explained(finding: Finding, at: Spot, meant: str = "") -> tuple[list[Explained], str]:
    return [Explained(finding, at, meant)], meant


def _explain_inside(at: Spot, block: Mapping, tree: Mapping, home: str = "") -> list[Explained]:
    """Returns a finding for each key of a block that is misplaced or another tool's. `home`: the block of the recipe
    that it was meant for, which is written, too."""
    findings: list[Explained] = []
    for key, entry in block.entries.items():
        inner = Spot((*at.path, key), entry.place, entry.value, None, block, ())
        path = f"{home}.{key}"
        if home and has_place(tree, path):
            if isinstance(entry.value, Mapping) and isinstance(find_exactly(tree, path), Mapping):
                findings += _explain_inside(inner, entry.value, tree, path)
            else:
                findings.append(Explained(report_misplaced(inner, [Known(path, "")], tree), inner, path))
        else:
            findings += _explain_key(inner, (), tree)[0] or [Explained(_report_unknown(inner, tree), inner, "")]
    return findings


def _find_twin(at: Spot, tree: Mapping) -> str:
    """Returns the path of the block that an unknown one was meant as, where both are written; else nothing. Each value
    has to be compared then, so that the stricter one stays."""
    if not isinstance(at.node, Mapping) or not at.node.entries:
        return ""
    name = nearest_word(str(at.path[-1]), [path.rpartition(".")[2] for path in PROTECTING])
    paths = [path for path in PROTECTING if path.rpartition(".")[2] == name and path != at.dotted]
    return next((path for path in paths if isinstance(find_exactly(tree, path), Mapping)), "")


def _report_second_tag(at: Spot, tag: str, owner: Mapping) -> Finding:
    said = show_value(owner.entries[tag].value)
    return Finding(
        "R101", f"unknown key; the block says its {tag}", f"remove it: `{tag}: {said}` says it", at.dotted, at.key
    )


def _report_unprotected(at: Spot) -> Finding:
    """Returns the finding for a key that only a recipe with a guarantee has."""
    return Finding(
        "R309",
        f"a recipe with mechanism none has no `{at.dotted}`: nobody is protected, and nothing is spent",
        "choose a mechanism with a guarantee; or remove it, if all records are public",
        at.dotted,
        at.key,
    )


def _report_unknown(at: Spot, tree: Mapping) -> Finding:
    known = ", ".join(quote_word(key) for key in remaining_keys(at) if is_read(at, key, tree))
    remedy = f"remove it; the block can also have {known}" if known else "remove it"
    shown = json.dumps(str(at.path[-1])[:60], ensure_ascii=False)[1:-1]
    return Finding("R101", f"unknown key `{shown}`", remedy, at.dotted, at.key)
