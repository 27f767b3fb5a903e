"""The parts of a tokeniser's file that may take for ever on some texts: patterns, and replacements that lengthen them.

A release may come from a stranger, and the `tokenizers` library matches patterns with backtracking. The work of all
patterns at one letter is bounded: by `MAX_STEPS`, which is three times that of published checkpoints.

Where a part of a pattern fails, the parts before it are tried in every other way in which they match. So the work at a
letter is bounded by the product of the ways of what precedes a part that may fail. A repeat without a limit counts
`LETTERS` ways; one of something that has several ways itself has no bound here.

| part | ways | work |
|---|---|---|
| a letter, a class | 1 | 1 |
| parts in a row | product | of each part, times the ways of those before it; once, where nothing after it may fail |
| a choice | sum | sum |
| a repeat of what has one way | its numbers of repetitions | the largest of them |
| a look ahead or behind | 1 | of what it looks for |
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

MAX_STEPS = 40_000
MAX_GROWTH = 4096
"""Factor by which replacements, applied one after the other, may lengthen a text."""


def take_long(node: object) -> bool:
    """Returns True if the patterns of a tokeniser's file, together, may take more than `MAX_STEPS` at one letter."""
    steps = 0.0
    for pattern in list_patterns(node):
        # The length is what counting costs: a pattern beyond the bound is not read.
        steps += len(pattern)
        if steps > MAX_STEPS:
            return True
        steps += count_steps(pattern)
    return steps > MAX_STEPS


def list_patterns(node: object) -> Iterator[str]:
    """Yields the regular expressions of a tokeniser's file."""
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
    """Returns True if a tokeniser's replacements may make a text more than `MAX_GROWTH` times longer.

    They are applied one after the other: each of forty may double it."""
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


LETTERS = 1000
"""Ways of a repeat without a limit: a text of as many equal letters."""
MANY = 64
"""Repetitions from which on a number counts as no limit."""
MAX_DEPTH = 50
UNSEEN = ("(?~", "(?(", "(?#")
_PIECE = re.compile(
    r"\\x\{[0-9a-fA-F]+\}|\\[pP]\{\^?\w+\}|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?[~(#]|\(\?[a-wyzA-Z-]*x"
    r"|\(\?[a-zA-Z-]+\)|\(\?(?:<?[=!]|[a-zA-Z-]*:|>|<\w+>|'\w+')|[()|*+?]|\{\d+,?\d*\}|\{,\d*\}|.",
    re.DOTALL,
)
_OPTIONS = re.compile(r"\(\?[a-zA-Z-]+\)")
_NESTED = re.compile(r"(?<!\\)\[(?!:)")
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")


@dataclass(frozen=True, slots=True)
class _Letter:
    """Takes one letter, or stands at a place of the text."""


@dataclass(frozen=True, slots=True)
class _Row:
    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class _Look:
    part: _Part


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Part
    least: int
    most: float


_Part: TypeAlias = _Letter | _Row | _Choice | _Look | _Repeat


class _Unseen(Exception):
    """The pattern is written so that its work can't be seen."""


def count_steps(pattern: str) -> float:
    """Returns an upper bound on the steps of matching at one letter; infinite where there is none, or it can't be seen:
    references to groups, comments, classes within classes.
    """
    reader = _Reader(_PIECE.findall(pattern))
    try:
        whole = reader.read_choice(0)
    except _Unseen:
        return math.inf
    return math.inf if reader.rest else _work_last(whole)


class _Reader:
    """Reads a pattern's pieces to a tree."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces
        self._at = 0

    @property
    def rest(self) -> bool:
        return self._at < len(self._pieces)

    def _peek(self) -> str:
        return self._pieces[self._at] if self.rest else ""

    def read_choice(self, depth: int) -> _Part:
        """Reads to the end of the group."""
        if depth > MAX_DEPTH:
            raise _Unseen
        rows = [self._read_row(depth)]
        while self._peek() == "|":
            self._at += 1
            rows.append(self._read_row(depth))
        return rows[0] if len(rows) == 1 else _Choice(tuple(rows))

    def _read_row(self, depth: int) -> _Part:
        parts: list[_Part] = []
        while self.rest and self._peek() not in ("|", ")"):
            parts.append(self._read_repeats(self._read_one(depth)))
        return parts[0] if len(parts) == 1 else _Row(tuple(parts))

    def _read_one(self, depth: int) -> _Part:
        piece = self._peek()
        self._at += 1
        if (
            piece in UNSEEN
            or (piece[:2] == "(?" and piece[-1] == "x")
            or re.match(r"\\[kgQ1-9]", piece)
            or (piece[0] == "[" and _NESTED.search(piece[1:]))
        ):
            raise _Unseen
        if _OPTIONS.fullmatch(piece):  # they hold to the end of the group, with its choices
            return self.read_choice(depth + 1)
        if piece[0] != "(":
            return _Letter()
        inner = self.read_choice(depth + 1)
        if self._peek() != ")":
            raise _Unseen
        self._at += 1
        return _Look(inner) if piece in _LOOKS else inner

    def _read_repeats(self, part: _Part) -> _Part:
        """Returns the part with the repeats behind it. A second sign makes a repeat possessive or lazy, which adds no
        way; behind braces it repeats, and `?` makes optional.
        """
        while (bounds := _read_bounds(self._peek())) is not None:
            braces = self._peek()[0] == "{"
            self._at += 1
            part = _Repeat(part, *bounds)
            if not braces and self._peek() in ("?", "+"):
                self._at += 1
        return part


def _read_bounds(piece: str) -> tuple[int, float] | None:
    if piece in ("*", "+", "?"):
        return int(piece == "+"), 1 if piece == "?" else math.inf
    match = re.fullmatch(r"\{(\d*)(,?)(\d*)\}", piece)
    if match is None:
        return None
    first, comma, last = match.groups()
    if len(first) > 6 or len(last) > 6:
        return 0, math.inf
    least = int(first or 0)
    most = int(last) if last else math.inf if comma else least
    return int(min(least, most)), max(least, most)


def _may_fail(part: _Part) -> bool:
    match part:
        case _Row(parts):
            return any(map(_may_fail, parts))
        case _Choice(parts):
            return all(map(_may_fail, parts))
        case _Repeat(inner, least, _):
            return least > 0 and _may_fail(inner)
        case _:
            return True


def _ways(part: _Part) -> float:
    """Returns the number of ways in which it matches at one letter, at most."""
    match part:
        case _Row(parts):
            return math.prod(map(_ways, parts))
        case _Choice(parts):
            return math.fsum(map(_ways, parts))
        case _Repeat(inner, least, most):
            ways, most = _ways(inner), math.inf if most >= MANY else most
            if ways == 1:
                return min(most, LETTERS) - min(least, LETTERS) + 1 if most != least else 1
            return math.inf if math.isinf(most) else _sum_powers(ways, least, int(most))
        case _:
            return 1


def _sum_powers(ways: float, least: int, most: int) -> float:
    try:
        return math.fsum(ways**power for power in range(least, most + 1))
    except OverflowError:
        return math.inf


def _work(part: _Part) -> float:
    """Returns the work of a part where what follows may fail, and every way is tried."""
    match part:
        case _Row(parts):
            return _work_row(parts, len(parts))
        case _Choice(parts):
            return math.fsum(map(_work, parts))
        case _Look(inner):
            return _work_last(inner)
        case _Repeat(inner, _, most):
            ways = _ways(inner)
            if ways == 1:
                return max(1.0, min(most, LETTERS)) * _work(inner) if most >= MANY else max(1.0, most) * _work(inner)
            return math.inf if most >= MANY else _sum_powers(ways, 0, int(most)) * _work(inner)
        case _:
            return 1


def _work_row(parts: Sequence[_Part], end: int) -> float:
    total, before = 0.0, 1.0
    for part in parts[:end]:
        total += before * _work(part)
        before *= _ways(part)
    return total


def _work_last(part: _Part) -> float:
    """Returns the work of a part where nothing that follows may fail: the first match is the last."""
    match part:
        case _Row(parts):
            last = _find_last_failing(parts)
            return _work_failing(part) + math.fsum(map(_work_last, parts[max(last, 0) :]))
        case _Choice(parts):
            return math.fsum(map(_work_last, parts))
        case _:
            return _work(part)


def _work_failing(part: _Part) -> float:
    """Returns the work until the part itself fails, where nothing that follows may fail."""
    match part:
        case _Row(parts):
            last = _find_last_failing(parts)
            if last < 0:
                return 0
            before = math.prod(map(_ways, parts[:last]))
            return _work_row(parts, last) + before * _work_failing(parts[last])
        case _Choice(parts):
            return math.fsum(map(_work_failing, parts))
        case _Repeat(inner, least, _) if _ways(inner) == 1:
            return max(1, least) * _work(inner)
        case _:
            return _work_last(part)


def _find_last_failing(parts: Sequence[_Part]) -> int:
    return max((index for index, part in enumerate(parts) if _may_fail(part)), default=-1)
