"""The figures of a report and their axes: lines, points and words in units of the data, as SVG.

A figure is paths and texts, one after the other: the small language that `dprecipe.release.figures` reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Literal, final

INK, SOFT, LINE, MARK, CAP = "#1c2733", "#5b6b7b", "#e3e8ee", "#1f6feb", "#c2410c"
"""Colours of text, axes, grid, data, and whatever data is compared with."""
BACK = "#ffffff"
"""The colour of the ground, where something has to be covered."""
SERIES = (SOFT, "#b8860b", "#8250df", MARK, "#1a7f4b")
"""Colours of several curves in one figure."""
SIZE = (324.0, 208.0)
"""Width and height of a figure, in pixels, like all lengths here."""
LEFT, RIGHT, TOP, BOTTOM = 60.0, 311.0, 8.0, 165.0
"""The area of the data; the rest is for numbers and names."""
TICKS = 6
"""Largest number of ticks on an axis."""
FEW_POWERS = 3
"""Fewest powers of ten that a logarithmic axis has as its only numbers."""
MAX_NAMES = 10
"""Largest number of names on an axis; of more, every second, third, … is written."""
MAX_DOTS = 200
"""Largest number of points that are marked on a curve; a longer curve is only a line."""
SMALL, USUAL = 9.0, 10.5
"""Font sizes."""
MAX, MIN_LOG = 1e150, 1e-150
"""Largest and smallest number that is drawn; numbers beyond are drawn at these."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Limits = tuple[float | None, float | None]
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a report.

    `name` is its label, in lower-case letters. `draw` may be slow: it is called to draw the figure, not to compare its
    text. `words` are all the words that may appear in it besides numbers. `alt` says what it shows to those who can't
    see it; without it, the caption does.
    """

    name: str
    caption: str
    draw: Callable[[Axes], None]
    words: frozenset[str]
    alt: str = ""


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Numbers from `low` to `high`, which is larger, and their places from `start` to `end`. `is_log`: all are
    positive, and equal distances are equal ratios. `is_whole`: only whole numbers are written. `names`: written instead
    of the numbers 0, 1, 2, …"""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False
    is_whole: bool = False
    names: tuple[str, ...] = ()

    def place(self, value: float) -> float:
        """Returns the place of a number; a number outside the scale is placed at its end."""
        if self.is_log:
            first = math.log(self.low)
            share = (math.log(max(value, self.low)) - first) / (math.log(self.high) - first)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def list_ticks(self) -> list[tuple[float, str]]:
        """Lists round numbers, each with its text."""
        if self.names:
            return [(float(i), self.names[i]) for i in range(0, len(self.names), -(-len(self.names) // MAX_NAMES))]
        if self.is_log and (ticks := self._list_log_ticks()):
            return ticks
        rough = (self.high - self.low) / TICKS
        rough = max(1.0, rough) if self.is_whole else rough
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * (1 - 1e-9))
        places = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return [(place * step, write_number(place * step)) for place in places]

    def _list_log_ticks(self) -> list[tuple[float, str]]:
        """Lists the powers of ten; where they are few, numbers between them, too; none of an axis too short for two."""
        powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
        if len(powers) >= FEW_POWERS:
            some = powers[:: max(1, -(-len(powers) // TICKS))]
            return [(10.0**power, f"10{str(power).translate(SUPERSCRIPTS)}") for power in some]
        lowest = math.floor(math.log10(self.low))
        for factors in ((1, 2, 5), (1, 5), (1,)):
            near = [factor * 10.0**power for power in range(lowest, lowest + 5) for factor in factors]
            shown = [at for at in near if self.low <= at * (1 + 1e-9) and at <= self.high * (1 + 1e-9)]
            if len(shown) < TICKS:
                break
        return [(at, write_number(at)) for at in shown] if len(shown) > 1 else []


@final
class Axes:
    """A pair of axes and the drawings on it.

    Limits that are not set are those of the data, with a small margin. Points that are not finite, or not positive on a
    logarithmic axis, are left out.
    """

    def __init__(self) -> None:
        self._parts: list[Callable[[AxisScale, AxisScale], Iterable[str]]] = []
        self._data: list[tuple[float, float]] = []
        self._labels: list[tuple[str, str, bool]] = []
        self._names, self._is_log, self._is_whole, self._is_log_x = ("", ""), False, False, False
        self._x_names: tuple[str, ...] = ()
        self._y_names: tuple[str, ...] = ()
        self._x: Limits = (None, None)
        self._y: Limits = (None, None)

    def set(
        self,
        x: str,
        y: str,
        x_limits: Limits = (None, None),
        y_limits: Limits = (None, None),
        *,
        log_y: bool = False,
        whole_x: bool = False,
        log_x: bool = False,
        x_names: Sequence[str] = (),
        y_names: Sequence[str] = (),
    ) -> None:
        """Sets the names of the axes, and their limits. `whole_x`: the x axis counts; `x_names`, `y_names`: the places
        0, 1, 2, … have these names."""
        self._names, self._x, self._y, self._is_log, self._is_whole = (x, y), x_limits, y_limits, log_y, whole_x
        self._is_log_x, self._x_names, self._y_names = log_x, tuple(x_names), tuple(y_names)

    def plot(
        self,
        points: Iterable[tuple[float, float]],
        color: str = MARK,
        *,
        dots: bool = False,
        dashed: bool = False,
        label: str = "",
    ) -> None:
        """Draws a curve through points. `label`: its name in the legend."""
        taken = self._take(points)
        if label:
            self._labels.append((label, color, dashed))

        def draw(x: AxisScale, y: AxisScale) -> Iterator[str]:
            places = [(x.place(a), y.place(b)) for a, b in taken if (b > 0 or not y.is_log) and (a > 0 or not x.is_log)]
            yield _stroke(_thin(places), color, 2.0, dashed=dashed)
            for place in places if dots and len(places) <= MAX_DOTS else ():
                yield _dot(place, color, 4.0)

        self._parts.append(draw)

    def mark(self, x: float, y: float, color: str = CAP) -> None:
        """Draws a single point."""
        taken = self._take([(x, y)])
        self._parts.append(lambda x, y: [_dot((x.place(a), y.place(b)), color, 7.0) for a, b in taken])

    def shade(self, points: Iterable[tuple[float, float]], color: str = MARK) -> None:
        """Shades the area between a curve and the x axis."""
        taken = self._take(points)

        def draw(x: AxisScale, y: AxisScale) -> Iterator[str]:
            places = _thin([(x.place(a), y.place(b)) for a, b in taken])
            if places:
                outline = [(places[0][0], BOTTOM), *places, (places[-1][0], BOTTOM)]
                yield f'<path d="{_trace(outline)} z" fill="{color}" fill-opacity="0.08"/>'

        self._parts.append(draw)

    def draw_level(self, y: float, color: str = CAP) -> None:
        """Draws a dashed line across, at `y`."""
        self._parts.append(
            lambda _, scale: [_stroke([(LEFT, scale.place(y)), (RIGHT, scale.place(y))], color, 1.4, dashed=True)]
        )

    def draw_upright(self, x: float, color: str = CAP) -> None:
        """Draws a dashed line from bottom to top, at `x`."""
        self._parts.append(
            lambda scale, _: [_stroke([(scale.place(x), BOTTOM), (scale.place(x), TOP)], color, 1.4, dashed=True)]
        )

    def draw_bars(self, edges: Sequence[float], heights: Sequence[float], color: str = MARK) -> None:
        """Draws a bar between each two `edges`."""
        self._take([(edges[0], 0.0), *zip(edges[1:], heights, strict=True)])

        def draw(x: AxisScale, y: AxisScale) -> Iterator[str]:
            for left, right, height in zip(edges, edges[1:], heights, strict=False):
                ends = x.place(left), x.place(right)
                corners = [(ends[0], BOTTOM), (ends[0], y.place(height)), (ends[1], y.place(height)), (ends[1], BOTTOM)]
                yield f'<path d="{_trace(corners)} z" fill="{color}"/>'

        self._parts.append(draw)

    def fill_cell(self, x: float, y: float, share: float, text: str) -> None:
        """Fills the square of side 1 around a point, the darker the larger `share` (0 to 1) is, and writes in it."""
        self._take([(x - 0.5, y - 0.5), (x + 0.5, y + 0.5)])

        def draw(across: AxisScale, up: AxisScale) -> Iterator[str]:
            left, right = across.place(x - 0.5), across.place(x + 0.5)
            low, high = up.place(y - 0.5), up.place(y + 0.5)
            outline = _trace([(left, low), (left, high), (right, high), (right, low)])
            yield f'<path d="{outline} z" fill="{BACK}"/>'  # no line of the grid shows through
            yield f'<path d="{outline} z" fill="{MARK}" fill-opacity="{_short(0.06 + 0.6 * share)}"/>'
            yield _text(text, (left + right) / 2, (low + high) / 2 + 4, INK, "middle")

        self._parts.append(draw)

    def write(
        self,
        text: str,
        at: tuple[float, float],
        color: str = INK,
        anchor: Anchor = "start",
        shift: tuple[float, float] = (0, 0),
    ) -> None:
        """Writes words at a point, moved right and down by `shift`."""
        self._parts.append(
            lambda x, y: [_text(text, x.place(at[0]) + shift[0], y.place(at[1]) + shift[1], color, anchor)]
        )

    def write_corner(self, text: str, color: str = CAP) -> None:
        """Writes words in the upper right corner."""
        self._parts.append(lambda *_: [_text(text, RIGHT - 8, TOP + 18, color, "end")])

    def add_legend(self, *, at_bottom: bool = False) -> None:
        """Names the labelled curves in the upper right corner, or in the lower one."""
        lines = len(self._labels)

        def draw(*_: AxisScale) -> Iterator[str]:
            for line, (label, color, dashed) in enumerate(self._labels):
                y = BOTTOM - 8 - 13 * (lines - 1 - line) if at_bottom else TOP + 14 + 13 * line
                yield _text(label, RIGHT - 30, y, color, "end", SMALL)
                yield _stroke([(RIGHT - 25, y - 3), (RIGHT - 5, y - 3)], color, 2.0, dashed=dashed)

        self._parts.append(draw)

    def render(self) -> str:
        """Renders everything: first the grid and the axes, then the drawings, in order."""
        places = [a for a, _ in self._data if a > 0 or not self._is_log_x]
        scale = _scale(places, self._x, LEFT, RIGHT, is_log=self._is_log_x)
        x = replace(scale, is_whole=self._is_whole, names=self._x_names)
        values = [b for _, b in self._data if b > 0 or not self._is_log]
        y = replace(_scale(values, self._y, BOTTOM, TOP, is_log=self._is_log), names=self._y_names)
        parts = [
            *(_stroke([(x.place(at), BOTTOM), (x.place(at), TOP)], LINE, 0.8) for at, _ in x.list_ticks()),
            *(_stroke([(LEFT, y.place(at)), (RIGHT, y.place(at))], LINE, 0.8) for at, _ in y.list_ticks()),
            *(
                _text(text, min(x.place(at), SIZE[0] - 3 * len(text)), BOTTOM + 15, SOFT, "middle")
                for at, text in x.list_ticks()
            ),
            *(_text(text, LEFT - 6, y.place(at) + 4, SOFT, "end") for at, text in y.list_ticks()),
            *(part for draw in self._parts for part in draw(x, y)),
            _text(self._names[0], (LEFT + RIGHT) / 2, SIZE[1] - 8, SOFT, "middle"),
            _text(self._names[1], 0, 0, SOFT, "middle", turned=(12, (TOP + BOTTOM) / 2)),
        ]
        return "".join(parts)

    def _take(self, points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        self._data += finite
        return finite


def _scale(values: Sequence[float], limits: Limits, start: float, end: float, *, is_log: bool = False) -> AxisScale:
    """Returns a scale of these limits; an open limit is that of the values, and a twentieth of their range beyond
    it."""
    bottom, top = (MIN_LOG if is_log else -MAX), MAX
    ends = (min(values, default=1.0), max(values, default=1.0))
    low, high = (min(top, max(bottom, e if limit is None else limit)) for e, limit in zip(ends, limits, strict=True))
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-280):
        low, high = (low / 10, low * 10) if is_log else (low - (abs(low) or 1.0) / 2, low + (abs(low) or 1.0) / 2)
    margin = (high / low) ** 0.05 if is_log else (high - low) * 0.05
    if limits[0] is None:
        low = max(bottom, low / margin if is_log else low - margin)
    if limits[1] is None:
        high = min(top, high * margin if is_log else high + margin)
    return AxisScale(low, high, start, end, is_log)


def write_number(value: float) -> str:
    """Formats a number beside an axis, in few characters."""
    is_plain = value == 0 or 1e-4 <= abs(value) < 1e7
    return (f"{value:,.10g}" if is_plain else f"{value:.3g}").replace("-", "−")


def _thin(places: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Returns the visible places: in each column of pixels the first, the last, the highest and the lowest."""
    if len(places) <= 2 * (RIGHT - LEFT):
        return places
    columns: dict[int, list[tuple[float, float]]] = {}
    for place in places:
        columns.setdefault(int(place[0]), []).append(place)
    shown: list[tuple[float, float]] = []
    for column in columns.values():
        by_height = sorted(column, key=lambda place: place[1])
        shown += dict.fromkeys((column[0], by_height[0], by_height[-1], column[-1]))
    return shown


def _stroke(places: Sequence[tuple[float, float]], color: str, width: float, *, dashed: bool = False) -> str:
    if not places:
        return ""
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    return f'<path d="{_trace(places)}" fill="none" stroke="{color}" stroke-width="{width:g}"{dashes}/>'


def _dot(place: tuple[float, float], color: str, width: float) -> str:
    """Draws a line of no length with a round end."""
    return (
        f'<path d="{_trace([place, place])}" fill="none" stroke="{color}" stroke-width="{width:g}" '
        'stroke-linecap="round"/>'
    )


def _trace(places: Sequence[tuple[float, float]]) -> str:
    return "M " + " L ".join(f"{_short(x)} {_short(y)}" for x, y in places)


def _text(
    text: str,
    x: float,
    y: float,
    color: str,
    anchor: Anchor,
    size: float = USUAL,
    turned: tuple[float, float] | None = None,
) -> str:
    """Renders words, if there are any, escaped; `turned`: upwards, around this place."""
    if not text:
        return ""
    turn = "" if turned is None else f' transform="translate({_short(turned[0])} {_short(turned[1])}) rotate(-90)"'
    at, words = f'x="{_short(x)}" y="{_short(y)}"', escape(text, quote=False)
    return f'<text {at} font-size="{size:g}px" text-anchor="{anchor}" fill="{color}"{turn}>{words}</text>'


def _short(value: float) -> str:
    return f"{round(value, 2) + 0.0:g}"  # never -0
