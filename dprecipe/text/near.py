"""The known word nearest to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CLOSE = 0.7


def nearest_word(word: str, known: Iterable[str], cutoff: float = CLOSE) -> str | None:
    """Returns the known word nearest to a misspelt one; None if none is near."""
    names = {loosen_word(name): name for name in known}
    written = loosen_word(word)
    if written in names:
        return names[written]
    matches = difflib.get_close_matches(written, names, n=1, cutoff=cutoff)
    return names[matches[0]] if matches else None


def loosen_word(word: str) -> str:
    """Returns a word in lower case, with underscores: how names are compared."""
    return word.lower().replace("-", "_").replace(" ", "_")
