"""The plot of `dprecipe noise`: the errors of each distribution over those of Gaussian noise, as a standalone SVG."""

from __future__ import annotations

import math
from html import escape

from dprecipe.contract.drawing import CAP, INK, LINE, MARK, SOFT
from dprecipe.mechanisms.encoded.commands.compare import Comparison, name_of

LEFT, WIDTH, RIGHT, ROW, TOP, BOTTOM = 140, 330, 150, 24, 60, 50
MAX_RATIO = 1.5
"""Largest error that is drawn to scale; larger ones, including infinite ones, are an arrow at the edge."""
MARGIN = 0.02


def plot_noise(comparison: Comparison) -> str:
    """Draws one row for each distribution, in the order of the table: a disc for its L1 error, a square for its L2
    error."""
    ratios = [ratio for row in comparison.distributions for ratio in (row.l1_ratio, row.l2_ratio)]
    low = min(ratios) - MARGIN
    high = max(ratio for ratio in ratios if ratio <= MAX_RATIO) + MARGIN

    def x(ratio: float) -> float:
        return LEFT + WIDTH * (ratio - low) / (high - low)

    bottom = TOP + ROW * len(comparison.distributions)
    parts = [_text(LEFT, 22, "Error at equal privacy, gaussian = 1", INK, "start", bold=True)]
    parts += [_disc(LEFT + 5, 40), _text(LEFT + 14, 44, "L1, E|noise|", SOFT, "start")]
    parts += [_square(LEFT + 115, 40), _text(LEFT + 124, 44, "L2, root mean square", SOFT, "start")]
    for head, column in (("L1", 70), ("L2", 140)):
        parts.append(_text(LEFT + WIDTH + column, 44, head, SOFT, "end"))
    for tick in _ticks(low, high):
        parts.append(_line(x(tick), TOP, x(tick), bottom, LINE, 1))
        parts.append(_text(x(tick), bottom + 18, f"{tick:g}", SOFT, "middle"))
    parts.append(_line(x(1), TOP, x(1), bottom, INK, 1))
    for index, row in enumerate(comparison.distributions):
        y = TOP + ROW * index + ROW / 2
        parts.append(_text(LEFT - 10, y + 4, name_of(row.distribution), INK, "end", bold=row.chosen))
        for ratio, mark, column in ((row.l2_ratio, _square, 140), (row.l1_ratio, _disc, 70)):
            parts.append(mark(x(ratio), y) if ratio <= MAX_RATIO else _arrow(x(high), y))
            label = f"{ratio:.3f}" if math.isfinite(ratio) else "infinite"
            parts.append(_text(LEFT + WIDTH + column, y + 4, label, INK, "end"))
    terms = comparison.terms
    note = f"ε = {terms.epsilon:g}, δ = {terms.delta:g}, {terms.steps:,} steps, {terms.dimension:,} coordinates"
    parts.append(_text(LEFT, bottom + 38, note, SOFT, "start"))
    width, height = LEFT + WIDTH + RIGHT, bottom + BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" aria-label="errors of noise distributions" font-family="system-ui, sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _ticks(low: float, high: float) -> list[float]:
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if (high - low) / step <= 7)
    return [round(n * step, 2) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _text(x: float, y: float, text: str, fill: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"/>'


def _disc(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{MARK}"/>'


def _square(x: float, y: float) -> str:
    return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{CAP}"/>'


def _arrow(x: float, y: float) -> str:
    return f'<path d="M{x - 9:.1f} {y - 4:.1f} L{x - 1:.1f} {y:.1f} L{x - 9:.1f} {y + 4:.1f} Z" fill="{SOFT}"/>'
