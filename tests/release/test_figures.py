"""Figures of a report: ours pass their grammar, and nothing that a browser could read otherwise does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dprecipe.mechanisms.pate import certificate as pate
from dprecipe.mechanisms.pnsgd import certificate as pnsgd
from dprecipe.release import figures

CLAIM = SimpleNamespace(
    epsilon=3.0,
    delta=1e-5,
    profile=[SimpleNamespace(epsilon=0.5 * i, delta=10.0**-i) for i in range(1, 9)],
)
PLACES = [pnsgd.PositionBound(position=i, epsilon=3 - 0.1 * i, delta=1e-5) for i in range(1, 9)]
CURVES = {name: [(point.epsilon, point.delta) for point in CLAIM.profile] for name in pnsgd.BOUNDS}
ALLOWED = frozenset(
    {
        *("ε", "δ", "ε spent", "steps", "queries", "answered, of those put", "accuracy"),
        *("position of the record", "no amplification", "contraction", "nonlinear", "iteration", "hybrid"),
        "mean absolute error",
        *("budget ε = 3", "claimed: ε = 3, δ = 1e-05", "7 of 9"),
    }
)
DRAW: dict[str, Callable[[Any], None]] = {
    "epsilon": lambda axes: figures.draw_spending(axes, [(0, 0.0), (10_000, 1.0), (2_000_000, 3.0)], 3.0),
    "answered": lambda axes: pate.draw_answered(axes, [(0, 0), (9, 7)]),
    "profile": lambda axes: figures.draw_profile(axes, CLAIM),  # type: ignore[arg-type]
    "positions": lambda axes: pnsgd.draw_positions(axes, PLACES, 3.0),
    "bounds": lambda axes: pnsgd.draw_bounds(axes, CURVES, (3.0, 1e-5)),
    "accuracy": lambda axes: figures.draw_scores(
        axes, [{"step": 1, "accuracy": 0.5}, {"step": 3, "accuracy": 0.6}], "accuracy", 0.3
    ),
    "errors": lambda axes: figures.draw_scores(
        axes,
        [{"step": 1, "mean_absolute_error": 5.0}, {"step": 3, "mean_absolute_error": 4.0}],
        "mean_absolute_error",
        None,
    ),
}


@pytest.fixture(scope="module")
def figure() -> str:
    return figures.render_svg("profile", DRAW["profile"])


@pytest.mark.parametrize("name", DRAW)
def test_every_figure_of_a_report_is_of_the_grammar(name: str) -> None:
    svg = figures.render_svg(name, DRAW[name])
    assert figures.find_flaw(svg, name, ALLOWED) is None
    assert "<!--" not in svg
    assert "style" not in svg
    assert "<path" in svg
    assert figures.find_flaw(svg, "another", ALLOWED) is not None
    assert 'stroke="#' in svg


FORBIDDEN = {
    "a comment": "<!-- words -->",
    "a comment that HTML ends at once": '<!--><div style="position:fixed">ε = 0.01</div><!---->',
    "a tag that is text to a browser": '<text x="2" y="4">< g true claim: ε = 0.01 ></text>',
    "words": '<text x="2" y="4">ε = 0.01, audited</text>',
    "a span of words": '<text x="2" y="4"><tspan>ε = 0.01, audited</tspan></text>',
    "the claim in parts": '<text x="2" y="4"><tspan>claimed: ε = 3, δ = 1e-05</tspan></text>',
    "words outside of a text": "audited",
    "words in a group": "<g>audited</g>",
    "an entity": '<text x="2" y="4">&#949;</text>',
    "a declaration": '<!DOCTYPE svg [<!ENTITY a "ε">]>',
    "an instruction": "<?xml-stylesheet href='x'?>",
    "verbatim characters": "<![CDATA[audited]]>",
    "a style": "<style>*{display:none}</style>",
    "a style of its own": '<g style="position:fixed"></g>',
    "a script": "<script>1</script>",
    "a handler": '<g onload="1"></g>',
    "HTML": "<foreignObject><div>audited</div></foreignObject>",
    "a heading": "<h1>audited</h1>",
    "a title": "<title>audited</title>",
    "a link": '<a href="https://example.org"></a>',
    "an image": '<image href="data:image/png;base64,AA"/>',
    "another file": '<use href="other.svg#m0123456789"/>',
    "another namespace": '<g xmlns="http://www.w3.org/1999/xhtml"></g>',
    "movement": '<animate attributeName="x"/>',
    "a new value": '<set attributeName="x"/>',
    "a quote left open": '<g transform="translate(1 1)></g>',
    "no quotes": "<g id=x></g>",
    "an attribute twice": '<rect x="1" x="2"/>',
    "a figure within": "<svg></svg>",
    "an end too many": "</g>",
    "a group left open": "<g>",
    "crossed ends": "<g><defs></g></defs>",
    "capital letters": "<G></G>",
    "a blank in an end": "<g></g >",
    "a line break in a tag": "<g\n></g>",
    "a null": "<g>\0</g>",
    "words in an attribute": '<path d="M 0 0 audited"/>',
    "a larger letter": '<text x="1" y="1" font-size="90px">3</text>',
    "depth": "<g>" * 100 + "</g>" * 100,
    "a repeated group": '<g id="m0123456789"></g>',
}


@pytest.mark.parametrize("what", FORBIDDEN)
@pytest.mark.parametrize("place", ["first", "last"])
def test_nothing_else_stands_in_a_figure(what: str, place: str, figure: str) -> None:
    start = figures.figure_head("profile")
    if place == "first":
        changed = start + FORBIDDEN[what] + figure.removeprefix(start)
    else:
        changed = figure.removesuffix("</svg>") + FORBIDDEN[what] + "</svg>"
    assert figures.find_flaw(changed, "profile", ALLOWED) is not None


def test_a_figure_begins_and_ends_as_one_and_is_no_longer_than_others(figure: str) -> None:
    for changed in (
        figure.replace('role="img"', 'role="img" style="position:fixed"'),
        figure.replace("0 0 324.0 208.0", "0 0 1 99999"),
        figure + "</svg>",
        figure.replace("</svg>", ""),
        figures.figure_head("profile") + "<g></g>" * 40_000 + "</svg>",
        "",
    ):
        assert figures.find_flaw(changed, "profile", ALLOWED) is not None
