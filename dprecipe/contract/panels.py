"""Several figures in one SVG file, which follows its reader from light to dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from dprecipe.contract.drawing import BACK, INK, SIZE, Axes
from dprecipe.page import DARK_FIGURES
from dprecipe.screen import make_printable

COLUMNS = 2
"""Most panels beside each other."""
TITLE, GAP, ENLARGED = 26.0, 16.0, 1.5
"""Height of a title, space around a panel, and the size of the file over that of a figure of a report."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure, and the words above it."""

    title: str
    draw: Callable[[Axes], None]


def render_panels(label: str, panels: Sequence[Panel]) -> str:
    """Returns the panels in rows, as an SVG file. `label`: what it shows, for those who can't see it."""
    columns = max(1, min(COLUMNS, len(panels)))
    across, down = SIZE[0] + GAP, SIZE[1] + TITLE + GAP
    width, height = GAP + columns * across, GAP + -(-len(panels) // columns) * down
    parts = []
    for index, panel in enumerate(panels):
        axes = Axes()
        panel.draw(axes)
        x, y = GAP + index % columns * across, GAP + index // columns * down
        title = escape(make_printable(panel.title), quote=False)
        parts.append(
            f'<g transform="translate({x:g} {y:g})"><text x="0" y="12" font-size="11.5px" font-weight="600" '
            f'fill="{INK}">{title}</text><g transform="translate(0 {TITLE:g})">{axes.render()}</g></g>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" role="img" aria-label="{escape(label)}" '
        f'width="{ENLARGED * width:g}" height="{ENLARGED * height:g}" viewBox="0 0 {width:g} {height:g}" '
        f'stroke-linejoin="round"><style>{DARK_FIGURES}</style>'
        f'<rect width="{width:g}" height="{height:g}" fill="{BACK}"/>{"".join(parts)}</svg>\n'
    )
