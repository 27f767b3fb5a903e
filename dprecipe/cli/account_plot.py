"""The picture of an account: what each run counts by itself, and what all came to after it, as an SVG of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from dprecipe.account.standing import AccountState
from dprecipe.account.state import HOLDING, RunState
from dprecipe.contract.drawing import CAP, INK, LINE, MARK, SOFT
from dprecipe.privacy.filters.filter import mixture_epsilon, odometer
from dprecipe.screen import make_printable

LEFT, WIDTH, TOP, HEIGHT, BOTTOM, RIGHT = 60, 560, 78, 260, 62, 30
MAX_POINTS = 160
OPEN_COLOUR = "#b8860b"


def draw_account(state: AccountState, runs: Sequence[RunState]) -> str:
    """Returns the runs in the order of their last entries: bars of what each counts alone (open reservations in another
    colour), a line of what all count after it, one of the odometer, and the cap. Of many runs, some are left out."""
    ordered = sorted(runs, key=lambda run: run.last)
    stride = max(1, math.ceil(len(ordered) / MAX_POINTS))
    shown = [(number, run) for number, run in enumerate(ordered, 1) if number % stride == 0 or number == len(ordered)]
    cap, whole = state.facts.cap, state.facts.epsilon
    counted = [(number - 0.5, mixture_epsilon(run.after, cap)) for number, run in shown]
    read = [(number - 0.5, odometer(run.after, cap)) for number, run in shown]
    highest = max([whole, *(y for _, y in [*counted, *read] if math.isfinite(y))]) * 1.08
    count = max(len(ordered), 1)

    def x_of(number: float) -> float:
        return LEFT + WIDTH * number / count

    def y_of(epsilon: float) -> float:
        return TOP + HEIGHT * (1 - min(epsilon, highest) / highest)

    bottom = TOP + HEIGHT
    parts = [_text(LEFT, 26, f"Account {state.facts.name}: ε over its runs", INK, "start", bold=True)]
    for tick in _ticks(highest):
        parts.append(_line(LEFT, y_of(tick), LEFT + WIDTH, y_of(tick), LINE))
        parts.append(_text(LEFT - 8, y_of(tick) + 4, f"{tick:g}", SOFT, "end"))
    for tick in _ticks(float(count)):
        if tick == int(tick) >= 1:
            parts.append(_text(x_of(tick - 0.5), bottom + 18, f"{tick:g}", SOFT, "middle"))
    thick = max(0.8, 0.7 * WIDTH * stride / count)
    for number, run in shown:
        alone = mixture_epsilon(run.counted, cap)
        colour = OPEN_COLOUR if run.status in HOLDING else MARK
        x, y = x_of(number - 0.5) - min(thick, 40) / 2, y_of(alone)
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{min(thick, 40):.1f}" height="{bottom - y:.1f}" fill="{colour}" '
            'fill-opacity="0.35"/>'
        )
    for points, colour, dashed in ((read, SOFT, True), (counted, MARK, False)):
        ends = [(0.0, 0.0), *points, (float(count), points[-1][1] if points else 0.0)]
        parts.append(_steps([(x_of(x), y_of(y)) for x, y in ends], colour, dashed))
    parts.append(_line(LEFT, y_of(whole), LEFT + WIDTH, y_of(whole), CAP, dashed=True, width=1.6))
    label = f"cap ε = {whole:g} at δ = {state.facts.delta:g}"
    parts.append(_text(LEFT + 6, y_of(whole) - 6, label, CAP, "start"))
    parts.append(_text(LEFT + WIDTH / 2, bottom + 40, "runs, in the order of their last entries", SOFT, "middle"))
    legend = (("counted, all runs", MARK), ("odometer", SOFT), ("one run alone", MARK), ("open, in full", OPEN_COLOUR))
    x = LEFT
    for place, (words, colour) in enumerate(legend):
        mark = (
            _line(x, 50, x + 16, 50, colour, dashed=place == 1, width=2)
            if place < 2
            else f'<rect x="{x + 2}" y="45" width="10" height="10" fill="{colour}" fill-opacity="0.35"/>'
        )
        parts += [mark, _text(x + 21, 54, words, SOFT, "start")]
        x += 40 + 7 * len(words)
    width, height = LEFT + WIDTH + RIGHT, bottom + BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" aria-label="what the runs of an account have spent" font-family="system-ui, sans-serif" '
        f'font-size="12">\n<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _steps(points: Sequence[tuple[float, float]], colour: str, dashed: bool) -> str:
    """Returns a line that rises where a run is."""
    path, y_before = [], points[0][1]
    for x, y in points:
        path += [f"{x:.1f},{y_before:.1f}", f"{x:.1f},{y:.1f}"]
        y_before = y
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<polyline points="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'


def _ticks(high: float) -> list[float]:
    """Returns round numbers from 0 to high, about five of them."""
    unit = 10.0 ** math.floor(math.log10(high / 5))
    step = unit * next((factor for factor in (1, 2, 5) if factor * unit >= high / 5), 10)
    return [float(f"{n * step:.10g}") for n in range(math.floor(high / step) + 1)]


def _text(x: float, y: float, text: str, fill: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    words = escape(make_printable(text))
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"{weight}>{words}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, *, dashed: bool = False, width: float = 1.0) -> str:
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{stroke}" stroke-width="{width:g}"{dash}/>'
