"""The parts of a tokeniser's file that may take for ever on some texts: patterns, and replacements that lengthen them.

A release may come from a stranger, and the `tokenizers` library matches patterns with backtracking. The work of all
patterns at one letter is bounded (`pattern_cost`): by `MAX_STEPS`, which is three times that of published checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.data.pattern_cost import count_steps

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
