"""The axes of figures: scales, ticks, and what can't be drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from dprecipe.contract.drawing import BOTTOM, LEFT, RIGHT, TOP, Axes, AxisScale
from dprecipe.release import figures


@pytest.mark.parametrize(
    ("low", "high", "is_log", "labels"),
    [
        (0, 1.05, False, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (0, 2_000_000, False, ["0", "500,000", "1,000,000", "1,500,000", "2,000,000"]),
        (-3, 3, False, ["−3", "−2", "−1", "0", "1", "2", "3"]),
        (0, 3e-8, False, ["0", "5e−09", "1e−08", "1.5e−08", "2e−08", "2.5e−08", "3e−08"]),
        (1e-3, 5.0, True, ["10⁻³", "10⁻²", "10⁻¹", "10⁰"]),
        (1e-30, 1.0, True, ["10⁻³⁰", "10⁻²⁴", "10⁻¹⁸", "10⁻¹²", "10⁻⁶", "10⁰"]),
        (2.0, 3.0, True, ["2", "2.2", "2.4", "2.6", "2.8", "3"]),
        (0.7, 30.0, True, ["1", "2", "5", "10", "20"]),
    ],
)
def test_ticks_are_few_round_numbers_at_their_places(low: float, high: float, is_log: bool, labels: list[str]) -> None:
    scale = AxisScale(low, high, 0.0, 300.0, is_log)
    ticks = scale.list_ticks()
    assert [text for _, text in ticks] == labels
    for value, text in ticks if not is_log else ():
        assert float(text.replace("−", "-").replace(",", "")) == pytest.approx(value)
    places = [scale.place(value) for value, _ in ticks]
    assert places == sorted(places)
    assert (scale.place(low), scale.place(high)) == (0.0, pytest.approx(300.0))
    middle = math.sqrt(low * high) if is_log else (low + high) / 2
    assert scale.place(middle) == pytest.approx(150.0)
    assert scale.place(high * 9) == 300.0


def curve(points: list[tuple[float, float]], **more: bool) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.plot(points, dots=True, label="a curve")
        axes.shade(points)
        axes.mark(1.0, 2.0)
        axes.add_legend()
        axes.set("steps", "δ", (0, None), **more)

    return draw


STRANGE: dict[str, list[tuple[float, float]]] = {
    "nothing": [],
    "one": [(0.0, 0.0)],
    "the same": [(5.0, 3.0), (5.0, 3.0)],
    "not finite": [(0.0, math.nan), (1.0, math.inf), (math.nan, 1.0)],
    "huge": [(0.0, -1e308), (1e308, 1e308)],
    "tiny": [(0.0, 5e-324), (5e-324, 1e-320)],
    "next to each other": [(1e15, 1.0), (1e15 + 0.125, 1.0 + 1e-16)],
    "not positive": [(0.0, -1.0), (1.0, 0.0), (2.0, 1e-9)],
    "many": [(float(i), math.sin(i)) for i in range(30_000)],
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("log_y", [False, True])
def test_whatever_is_drawn_is_a_figure_of_a_report(name: str, log_y: bool) -> None:
    svg = figures.render_svg("curve", curve(STRANGE[name], log_y=log_y))
    assert figures.find_flaw(svg, "curve", frozenset({"steps", "δ", "a curve"})) is None
    assert len(svg) < 30_000
    for path in re.findall('d="([^"]*)"', svg):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
        assert all(LEFT <= x <= RIGHT for x in numbers[::2])
        assert all(TOP <= y <= BOTTOM for y in numbers[1::2])


def test_what_is_drawn_is_where_the_numbers_say() -> None:
    def draw(axes: Axes) -> None:
        axes.plot([(0, 0), (10, 1), (20, 4)])
        axes.draw_level(2)
        axes.draw_upright(5)
        axes.draw_bars([0, 10, 20], [1, 3])
        axes.write("words", (20, 4), anchor="end", shift=(-4, 7))
        axes.write_corner("corner")
        axes.set("x", "y", (0, 20), (0, 4))

    root = ElementTree.fromstring(figures.render_svg("places", draw))
    drawn = [path.get("d") for path in root if path.get("stroke", "#e3e8ee") != "#e3e8ee" or path.get("fill") != "none"]
    height, width = BOTTOM - TOP, RIGHT - LEFT
    middle, up = LEFT + width / 2, BOTTOM - height / 4
    assert f"M {LEFT:g} {BOTTOM:g} L {middle:g} {up:g} L {RIGHT:g} {TOP:g}" in drawn
    assert f"M {LEFT:g} {TOP + height / 2:g} L {RIGHT:g} {TOP + height / 2:g}" in drawn
    assert f"M {LEFT + width / 4:g} {BOTTOM:g} L {LEFT + width / 4:g} {TOP:g}" in drawn
    assert f"M {LEFT:g} {BOTTOM:g} L {LEFT:g} {up:g} L {middle:g} {up:g} L {middle:g} {BOTTOM:g} z" in drawn
    words = next(text for text in root if text.text == "words")
    assert (words.get("x"), words.get("y"), words.get("text-anchor")) == ("307", "15", "end")
    assert {"corner", "x", "y"} <= {text.text for text in root}


def test_words_are_words_and_no_markup() -> None:
    words = 'a < b & c > "d" <script>'

    def draw(axes: Axes) -> None:
        axes.write(words, (0, 0))
        axes.plot([(0, 0), (1, 1)], label=words)
        axes.add_legend()
        axes.set(words, "y")

    root = ElementTree.fromstring(figures.render_svg("words", draw))
    assert [text.text for text in root].count(words) == 3
    assert {element.tag for element in root} == {"path", "text"}


def test_a_logarithmic_x_axis_and_one_of_names() -> None:
    axes = Axes()
    axes.mark(0.0, 1.0)
    axes.mark(0.1, 1.0)
    axes.set("lr", "loss", (1e-3, 10.0), log_x=True)
    assert ">10⁻²</text>" in axes.render()
    named = AxisScale(-0.5, 19.5, 0.0, 300.0, names=tuple(f"kind {i}" for i in range(20)))
    assert named.list_ticks()[:2] == [(0.0, "kind 0"), (2.0, "kind 2")]
