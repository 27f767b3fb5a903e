"""The plot of `dprecipe votes`, an SVG: answers against the threshold, and ε against queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from dprecipe.contract.drawing import CAP, INK, LINE, MARK, SOFT
from dprecipe.mechanisms.pate.commands.forecast_document import Forecast

LEFT, WIDTH, HEIGHT, TOP, BOTTOM, RIGHT = 60, 420, 200, 70, 60, 30
GREEN = "#15803d"

Line = tuple[str, str, Sequence[tuple[float, float]]]
"""A name, a colour, and points."""


def plot_votes(forecast: Forecast) -> str:
    """Draws one panel below the other; the first is left out where every query is answered."""
    panels: list[tuple[str, list[Line], float | None]] = []
    if forecast.threshold is not None:
        lines: list[Line] = [
            ("answered, of the queries", MARK, [(each.threshold, each.answered) for each in forecast.thresholds]),
            (
                "right, of the answers",
                GREEN,
                [(each.threshold, each.right) for each in forecast.thresholds if each.right is not None],
            ),
        ]
        panels.append(("Threshold, in votes", lines, forecast.threshold))
    points = forecast.points
    lines = [
        ("worst case", CAP, [(point.queries, point.worst_case) for point in points]),
        ("data-dependent, private", MARK, [(point.queries, point.data_dependent) for point in points]),
    ]
    sanitised = [(float(point.queries), point.sanitised) for point in points if point.sanitised is not None]
    if sanitised:
        lines.append(("sanitised", GREEN, sanitised))
    panels.append(("ε against queries", lines, None))
    parts, top = [], 0
    for title, series, mark in panels:
        parts += _panel(title, series, mark, top)
        top += TOP + HEIGHT + BOTTOM
    width = LEFT + WIDTH + RIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}" '
        'role="img" aria-label="simulated votes" font-family="system-ui, sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{top}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(title: str, lines: Sequence[Line], mark: float | None, above: int) -> list[str]:
    """Draws lines over common axes, their names on top, and a dashed line at `mark`."""
    series = [[(x, y) for x, y in points if math.isfinite(y)] for _, _, points in lines]
    everything = [point for points in series for point in points]
    low, high = min((x for x, _ in everything), default=0.0), max((x for x, _ in everything), default=1.0)
    low, high = (0.0 if mark is None else low), max(high, low + 1e-9)
    max_y = max((y for _, y in everything), default=1.0) * 1.05 or 1.0
    top, bottom = above + TOP, above + TOP + HEIGHT

    def x_of(x: float) -> float:
        return LEFT + WIDTH * (x - low) / (high - low)

    def y_of(y: float) -> float:
        return bottom - HEIGHT * y / max_y

    parts = [_text(LEFT, above + 24, title, INK, "start", bold=True)]
    for tick in _ticks(0.0, max_y):
        parts.append(_line(LEFT, y_of(tick), LEFT + WIDTH, y_of(tick), LINE))
        parts.append(_text(LEFT - 8, y_of(tick) + 4, f"{tick:g}", SOFT, "end"))
    for tick in _ticks(low, high):
        parts.append(_line(x_of(tick), top, x_of(tick), bottom, LINE))
        parts.append(_text(x_of(tick), bottom + 18, f"{tick:g}", SOFT, "middle"))
    if mark is not None and low <= mark <= high:
        parts.append(_line(x_of(mark), top, x_of(mark), bottom, SOFT, dashed=True))
        parts.append(_text(x_of(mark), bottom + 36, f"the recipe's, {mark:g}", SOFT, "middle"))
    x_legend = LEFT
    for (name, colour, _), points in zip(lines, series, strict=True):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{x_legend + 5}" cy="{above + 46}" r="4.5" fill="{colour}"/>')
        parts.append(_text(x_legend + 14, above + 50, name, SOFT, "start"))
        x_legend += 30 + 7 * len(name)
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Returns about five round numbers from low to high."""
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next((factor for factor in (1, 2, 5) if factor * unit >= rough), 10)
    return [float(f"{n * step:.10g}") for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _text(x: float, y: float, text: str, fill: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"{dash}/>'
