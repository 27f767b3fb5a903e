"""The figures that a room adds to a report, as what to draw; `release/` draws them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INK, SOFT, LINE, MARK, CAP = "#1c2733", "#5b6b7b", "#e3e8ee", "#1f6feb", "#c2410c"
"""Colours of text, axes, grid, data, and what data is compared with."""
SERIES = (SOFT, "#b8860b", "#8250df", MARK, "#1a7f4b")
"""Colours of several curves in one figure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a report.

    `name` is its label, in lower-case letters. `draw` takes matplotlib axes and may be slow: it is called to draw the
    figure, not to compare its text. `words` are all the words that may appear in it besides numbers. `alt` says
    what it shows to those who can't see it; without it, the caption does.
    """

    name: str
    caption: str
    draw: Callable[[Any], None]
    words: frozenset[str]
    alt: str = ""
