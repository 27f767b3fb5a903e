"""The words that a shell completes, beside commands, options and names of files, which it completes by itself.

A function gets what is written so far, and imports what it needs when it is called: no other command pays for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from dprecipe.faults import Fault

Complete = Callable[[str], list[str]]


def complete_words(*words: str) -> Complete:
    """Returns what completes one of these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def complete_gallery(incomplete: str) -> list[str]:
    """Completes the name of a recipe that comes with dprecipe. A broken installation has none: a shell shows no
    messages."""
    from dprecipe.cli.gallery import list_recipes

    with suppress(Fault):
        return complete_words(*list_recipes())(incomplete)
    return []


def complete_codes(incomplete: str) -> list[tuple[str, str]]:
    """Completes the code of a finding, each with its title; none of a broken installation."""
    from dprecipe.cli.explain import read_titles

    with suppress(Fault):
        return [(code, title) for code, title in read_titles().items() if code.startswith(incomplete)]
    return []
