"""The figures that a room adds to a report, as what to draw; `release/` draws them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INK, SOFT, LINE, MARK, CAP = "#1c2733", "#5b6b7b", "#e3e8ee", "#1f6feb", "#c2410c"
"""Text, axes, grid, data, and what data is held against."""
SERIES = (SOFT, "#b8860b", "#8250df", MARK, "#1a7f4b")
"""Several curves in one figure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a report.

    `name` is its label, lower-case letters; `draw` is given matplotlib axes and may be slow: it is called where a
    figure is drawn and not where its words are compared. `words` are all it may say besides numbers.
    """

    name: str
    caption: str
    draw: Callable[[Any], None]
    words: frozenset[str]
