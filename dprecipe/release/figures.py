"""The form of a figure in a report: `find_flaw` checks a stranger's figure for it.

A browser and a pattern may read a broken tag or a comment differently. So the whole figure must follow a small language
that every reader understands in the same way: paths and texts, one after the other, none inside another, with
allow-listed attributes, each value of its own form; no comment, style, entity or reference; and only words that the
report may contain. `dprecipe.contract.drawing` writes it.
"""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

from dprecipe.contract.drawing import SIZE

MAX_FIGURE = 1 << 18
"""Characters of a figure; those of a report have about five thousand."""

_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
_PLACE = rf"{_NUMBER} {_NUMBER}"
_TICK_LABEL = re.compile(r"[\d ,.eE+^%×−⁰¹²³⁴⁵⁶⁷⁸⁹⁻-]{0,24}")
_COLOR = r"none|#[0-9a-f]{6}"
_PAINT = {"fill": _COLOR, "fill-opacity": r"[01](?:\.\d{1,4})?"}
_TEXT = {
    "x": _NUMBER,
    "y": _NUMBER,
    "transform": rf"translate\({_PLACE}\) rotate\({_NUMBER}\)",
    "font-size": r"(?:\d|1[0-2])(?:\.\d{1,4})?px",
    "text-anchor": "start|middle|end",
}
_PATH = {
    "d": rf"M {_PLACE}(?: L {_PLACE})*(?: z)?",
    "stroke": _COLOR,
    "stroke-width": r"\d(?:\.\d{1,4})?",
    "stroke-dasharray": _PLACE,
    "stroke-linecap": "round",
}
_FORMS = {
    tag: {name: re.compile(form) for name, form in {**attributes, **_PAINT}.items()}
    for tag, attributes in {"path": _PATH, "text": _TEXT}.items()
}
"""The attributes of each element, and the form of their values."""
_ATTRIBUTES = r'(?P<{}>(?: [a-z-]{{1,20}}="[^"<>&]*")*)'
_ELEMENT = re.compile(
    rf"<path{_ATTRIBUTES.format('path')}/>|<text{_ATTRIBUTES.format('text')}>(?P<words>[^<>&]+)</text>"
)
_ATTRIBUTE = re.compile(r' ([a-z-]+)="([^"]*)"')


def figure_head(name: str) -> str:
    """Returns the first tag of the figure of this name."""
    width, height = SIZE
    return (
        f'<svg role="img" aria-label="{name}" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'stroke-linejoin="round" stroke-linecap="butt">'
    )


def find_flaw(figure: str, name: str, allowed: frozenset[str]) -> str | None:
    """Explains why `figure` is not a valid figure of this name in a report, or None. `allowed`: its texts, besides
    numbers.

    Guarantees: HTML and XML parsers read a figure without a flaw in the same way. It has the size of the other figures,
    refers to nothing, and has no words but those allowed. Its lines may show
    anything.
    """
    if len(figure) > MAX_FIGURE:
        return f"a figure is longer than {MAX_FIGURE // 1024} KiB"
    start = figure_head(name)
    if not figure.startswith(start):
        return "a figure does not start like a figure of a report"
    if not figure.endswith("</svg>"):
        return "a figure does not end like a figure of a report"
    body = figure[len(start) : -len("</svg>")]
    result = _find_body_flaw(body, allowed)
    if result is not None:
        return result
    try:
        ElementTree.fromstring(figure)
    except ElementTree.ParseError:
        return "a figure is not XML"
    return None


def _find_body_flaw(body: str, allowed: frozenset[str]) -> str | None:
    place = 0
    while place < len(body):
        element = _ELEMENT.match(body, place)
        if element is None:
            return f"a figure has something that is neither a path nor a text: {body[place : place + 40]!a}"
        place = element.end()
        tag = "path" if element["words"] is None else "text"
        flaw = _find_attribute_flaw(tag, element[tag])
        if flaw is not None:
            return flaw
        words = element["words"] or ""
        if words not in allowed and not _TICK_LABEL.fullmatch(words):
            return f"a figure has the text {words[:80]!a}, which the report does not"
    return None


def _find_attribute_flaw(tag: str, attributes: str) -> str | None:
    pairs = _ATTRIBUTE.findall(attributes)
    if any(first == second for first, second in pairwise(sorted(name for name, _ in pairs))):
        return f"a figure gives an attribute of {tag!a} twice"
    for name, value in pairs:
        if name not in _FORMS[tag] or not _FORMS[tag][name].fullmatch(value):
            return f"a figure gives {tag!a} the attribute {name}={value[:40]!a}"
    return None
