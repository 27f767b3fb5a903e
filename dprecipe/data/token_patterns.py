"""Patterns of a tokeniser that may take for ever on some texts.

The `tokenizers` library matches with backtracking, and a release may come from a stranger. A pattern that repeats a
group which itself repeats or chooses, as in `(a+)+` or `(a|aa)*`, takes a time that doubles with each letter; so may
one that refers to what a group has matched. The patterns of published checkpoints have none of these, nor what would
hide one: comments, and classes within classes. What repeats one class after the other takes at most a power of the
text's length, and is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_PATTERN = 20_000
MANY = 64
"""A bounded number of repetitions counts as unbounded from here on."""
MAX_GROWTH = 4096
"""How many times longer replacements may make a text, one after the other."""
UNSEEN = ("(?~", "(?(", "(?#")
_PIECE = re.compile(
    r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?[~(#]|\(\?[a-wyzA-Z-]*x|[()|*+]|\{\d*,?\d*\}|.", re.DOTALL
)
_NESTED = re.compile(r"(?<!\\)\[(?!:)")


def list_patterns(node: object) -> Iterator[str]:
    """The regular expressions of a tokeniser's file."""
    if isinstance(node, dict):
        own = node.get("Regex")
        if isinstance(own, str):
            yield own
        for value in node.values():
            yield from list_patterns(value)
    elif isinstance(node, list):
        for value in node:
            yield from list_patterns(value)


def grows_texts(node: object) -> bool:
    """Whether replacements of a tokeniser's file, one after the other, may make a text more than `MAX_GROWTH` times
    longer: each of forty may double it."""
    growth = 1.0
    for pattern, content in _list_replacements(node):
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        growth *= max(1.0, len(content) / max(1, len(literal) if isinstance(literal, str) else 1))
    return growth > MAX_GROWTH


def _list_replacements(node: object) -> Iterator[tuple[object, str]]:
    if isinstance(node, dict):
        if node.get("type") == "Replace" and isinstance(node.get("content"), str):
            yield node.get("pattern"), node["content"]
        for value in node.values():
            yield from _list_replacements(value)
    elif isinstance(node, list):
        for value in node:
            yield from _list_replacements(value)


def may_hang(pattern: str) -> bool:
    """Whether a pattern repeats a group that repeats or chooses, refers to a group, is longer than `MAX_PATTERN`, or is
    written so that this can't be seen."""
    if len(pattern) > MAX_PATTERN:
        return True
    pieces = _PIECE.findall(pattern)
    open_groups, closed = [False], False
    """Whether each open group has repeated or chosen something; and whether the group that has just ended has."""
    for piece in pieces:
        if (
            piece in UNSEEN
            or (piece[:2] == "(?" and piece[-1] == "x")
            or re.match(r"\\[kgQ1-9]", piece)
            or (piece[0] == "[" and _NESTED.search(piece[1:]))
        ):
            return True
        repeats = _repeats(piece)
        if repeats and closed:
            return True
        closed = False
        if piece == "(":
            open_groups.append(False)
        elif piece == ")":
            if len(open_groups) == 1:
                return True
            closed = open_groups.pop()
            open_groups[-1] |= closed
        elif piece == "|" or repeats:
            open_groups[-1] = True
    return len(open_groups) > 1


def _repeats(piece: str) -> bool:
    if piece in ("*", "+"):
        return True
    bounds = re.fullmatch(r"\{(\d*)(,?)(\d*)\}", piece)
    if bounds is None:
        return False
    least, comma, most = bounds.groups()
    return (comma == "," and most == "") or max(int(least or 0), int(most or 0)) >= MANY
