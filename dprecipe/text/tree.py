"""The tree of a text: values with the places they were written at.

The value of an unquoted word is that of the JSON subset of YAML 1.2, and nothing else: `1e-5` is a number; `no`, `on`,
`017`, `12:30:45`, `2024-01-01` are text; only `true` and `false` are booleans.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from dprecipe.faults import Place

Value = str | int | float | bool | None
Json = Value | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value as resolved, and whether it was quoted. `broken`: a finding was already made about it.

    `text`: a number or word as written (`3.10`, `~`), with the digits that are no part of its value; empty for text."""

    value: Value
    place: Place
    quoted: bool = False
    broken: bool = False
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    items: tuple[Node, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a block: where the key stands, and its value."""

    place: Place
    value: Node


@dataclass(frozen=True, slots=True)
class Mapping:
    """A block. `by_index`: it was written as the path of an override, so its keys may be list positions."""

    entries: dict[str, Entry]
    place: Place
    by_index: bool = False


Node = Scalar | Sequence | Mapping
Path = tuple[str | int, ...]


def to_plain(node: Node) -> Json:
    """Returns the value without its places: JSON types only."""
    if isinstance(node, Mapping):
        return {key: to_plain(entry.value) for key, entry in node.entries.items()}
    if isinstance(node, Sequence):
        return [to_plain(item) for item in node.items]
    return node.value


def child_node(node: Node, step: str | int) -> Node | None:
    """Returns the value under a key or a position; None where there is none."""
    if isinstance(node, Mapping):
        entry = node.entries.get(str(step))
        return None if entry is None else entry.value
    if isinstance(node, Sequence):
        index = int(step) if isinstance(step, int) or step.isdecimal() else -1
        return node.items[index] if 0 <= index < len(node.items) else None
    return None


def key_place(node: Node, step: str | int) -> Place | None:
    """Returns the place of the key (or list item) itself."""
    if isinstance(node, Mapping):
        entry = node.entries.get(str(step))
        return None if entry is None else entry.place
    item = child_node(node, step)
    return None if item is None else item.place


def find_node(root: Node, dotted: str) -> tuple[Path, Place]:
    """Returns the place of a dotted path, as near as the text comes to it.

    A scalar is pointed at itself, a block or list at its key. Steps that are no key of the block at hand
    are skipped (a default that is not written, a tag in between), so the nearest written ancestor answers.
    A key that holds dots itself is found too."""
    steps = dotted.split(".") if dotted else []
    path: Path = ()
    node, place = root, root.place
    position = 0
    while position < len(steps):
        for end in range(position + 1, len(steps) + 1):
            step = ".".join(steps[position:end])
            below = child_node(node, step)
            if below is not None:
                key = key_place(node, step)
                blank = isinstance(below, Scalar) and below.value is None
                place = below.place if isinstance(below, Scalar) and not blank else key or below.place
                node, path, position = below, (*path, step), end
                break
        else:
            position += 1
    return path, place


_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None, "~": None, "": None}
_INT_BOUND = 2**63


class NotFiniteError(ValueError):
    """A number that can't be represented as a finite one; the message says why."""


def resolve_scalar(text: str) -> Value:
    """Returns the value of a plain scalar.

    Raises:
        NotFiniteError: `.inf`, `.nan`, or a number too large or too small to be held.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise NotFiniteError(f"{text} is not a finite number")
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    if match["fraction"] is None and match["exponent"] is None:
        # Digits are counted first: converting a very long integer is slow, and refused by Python itself.
        if len(text) > 20 or not -_INT_BOUND <= int(text) < _INT_BOUND:
            raise NotFiniteError("the number is too large")
        return int(text)
    value = float(text)
    if not math.isfinite(value):
        raise NotFiniteError(f"{_short(text)} is too large for a number")
    mantissa = text.lower().partition("e")[0]
    if value == 0 and any(digit in "123456789" for digit in mantissa):
        raise NotFiniteError(f"{_short(text)} is so small that it would become 0")
    return value


def _short(text: str) -> str:
    return text if len(text) <= 30 else text[:27] + "…"
