"""Several keys that were meant for one place: following each one's remedy alone would write it twice.

One of them keeps its remedy: of those that decide how much is protected the strictest, of others the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from dprecipe.faults import Finding
from dprecipe.recipe.stricter import EITHER, PROTECTING, is_stricter, show_value
from dprecipe.recipe.vocabulary import Spot
from dprecipe.text.tree import Json, Node, Scalar, to_plain


@final
@dataclass(frozen=True, slots=True)
class Explained:
    """The finding for an unknown key, and the dotted path that was meant; empty where that can't be known."""

    finding: Finding
    at: Spot
    meant: str

    @property
    def writes(self) -> bool:
        """True if the remedy writes the value at the path that was meant, and nowhere else."""
        remedy, name = self.finding.remedy, self.meant.rpartition(".")[2]
        return bool(self.meant) and (
            remedy in (f"move it to {self.meant}", f"set {self.meant}")
            or remedy.startswith(
                (f"set {self.meant} ", f"set {self.meant}:", f"write {self.meant}: ", f"write `{name}`")
            )
        )

    @property
    def keeps_value(self) -> bool:
        """True if the value stays as it is written."""
        return not self.finding.remedy.startswith("set ") or self.finding.remedy.startswith(
            f"set {self.meant} to {self.value}"
        )

    @property
    def value(self) -> str:
        return "" if self.at.node is None else show_value(self.at.node)


def settle_doubles(explained: Sequence[Explained]) -> list[Finding]:
    """Returns the findings in their order, with remedies that can all be followed."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(explained):
        if one.writes:
            groups[min(one.meant, EITHER.get(one.meant, one.meant))].append(index)
    findings = [one.finding for one in explained]
    for indices in groups.values():
        same = [explained[index] for index in indices]
        kept = _choose(same)
        for index in indices if len(indices) > 1 else ():
            one = explained[index]
            if one is not kept:
                findings[index] = replace(one.finding, remedy=_explain_other(one, kept))
    return findings


def _choose(same: Sequence[Explained]) -> Explained | None:
    """Returns the key whose value stays; None where the author has to choose."""
    kept = same[0]
    for other in same[1:]:
        stricter = _is_stricter(other, kept)
        if stricter is None and (kept.meant in PROTECTING or kept.meant == "data.unit") and not _is_equal(other, kept):
            return None
        kept = other if stricter else kept
    return kept


def _is_stricter(one: Explained, other: Explained) -> bool | None:
    nodes = one.at.node, other.at.node
    if None in nodes or one.meant != other.meant or not (one.keeps_value and other.keeps_value):
        return None
    return is_stricter(one.meant, _plain(nodes[0]), _plain(nodes[1]))


def _is_equal(one: Explained, other: Explained) -> bool:
    are_alike = (one.keeps_value and other.keeps_value) or one.finding.remedy == other.finding.remedy
    return one.meant == other.meant and are_alike and _plain(one.at.node) == _plain(other.at.node)


def _plain(node: Node | None) -> Json:
    return None if node is None else to_plain(node)


def _explain_other(one: Explained, kept: Explained | None) -> str:
    if kept is None:
        return f"keep the one that protects more, as {one.meant}, and remove the other"
    name = f"`{kept.at.path[-1] if kept.at.path[-1] != one.at.path[-1] else kept.at.dotted}`"
    if one.meant != kept.meant:
        return f"remove it: {name} says it, and a recipe has one of {one.meant} and {kept.meant}"
    if _is_equal(one, kept):
        return f"remove it: {name} says the same"
    if not (isinstance(one.at.node, Scalar) and isinstance(kept.at.node, Scalar)):
        return f"join it with {name}, in one {one.meant}"
    if _is_stricter(kept, one):
        return f"remove it: {name} is {kept.value}, the stricter of the two"
    return f"remove it: {name} is {kept.value}, and both are {one.meant}"
