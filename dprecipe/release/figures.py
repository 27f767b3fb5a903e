"""Figures of reports: their drawing, and their form, by which `find_flaw` checks a stranger's figure.

A browser and a pattern may read a broken tag or a comment differently. So the whole figure must follow a small language
that every reader understands in the same way: paths and texts, one after the other, none inside another, with
allow-listed attributes, each value of its own form; no comment, style, entity or reference; and only words that the
report may contain. `dprecipe.contract.drawing` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, takewhile
from xml.etree import ElementTree

from dprecipe.contract.drawing import CAP, SIZE, Axes
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, count_events, take_first
from dprecipe.privacy.rounding import write_number
from dprecipe.release.schema import Claim
from dprecipe.release.scores import SHARES, format_score

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


POINTS = 24
ALONE = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"'
"""Attributes that a figure needs where it is a file of its own."""


def trace_spending(plan: Plan, charges: Sequence[Charge]) -> list[tuple[int, float]]:
    """Returns (steps or queries, ε spent up to there) along the charged events; every ε is an upper bound."""
    events, budget, part = count_events(charges), plan.budget, mechanism_of(plan.mechanism).certificate
    # What is charged before or after the steps shows as a jump.
    step_events = sum(charge.count for charge in charges if part.count_steps(charge.event))
    first = sum(charge.count for charge in takewhile(lambda charge: not part.count_steps(charge.event), charges))
    counts = sorted({first, step_events, *(round(events * i / POINTS) for i in range(1, POINTS + 1))} - {0})
    points = [(0, 0.0)]
    for count in counts:
        prefix = take_first(charges, count)
        epsilon = accountants.epsilon(prefix, budget.delta, budget.neighbouring, budget.accountant)
        points.append((part.count_steps_charged(prefix), epsilon))
    return points


def label_budget(budget: float) -> str:
    """Beside the line of the budget."""
    return f"budget ε = {write_number(budget)}"


def label_claim(claim: Claim) -> str:
    """Beside the claimed point."""
    return f"claimed: ε = {write_number(claim.epsilon)}, δ = {write_number(claim.delta)}"


def draw_spending(axes: Axes, points: Sequence[tuple[int, float]], budget: float, what: str = "steps") -> None:
    """Draws ε over steps, against the budget."""
    axes.draw_level(budget)
    axes.plot(points)
    axes.shade(points)
    axes.write(label_budget(budget), (0, budget), CAP, shift=(4, 13))
    axes.set(what, "ε spent", (0, max(step for step, _ in points)), (0, budget * 1.08))


def draw_profile(axes: Axes, claim: Claim) -> None:
    """Draws δ(ε) on a logarithmic scale, with the claimed point."""
    axes.plot((point.epsilon, point.delta) for point in claim.profile)
    axes.mark(claim.epsilon, claim.delta)
    axes.write_corner(label_claim(claim))
    axes.set("ε", "δ", log_y=True)


def draw_scores(
    axes: Axes, history: Sequence[Mapping[str, float]], key: str, baseline: float | None, what: str = "steps"
) -> None:
    """Draws the score `key` on public records over steps, against the score that takes no model."""
    points = [(point["step"], point[key]) for point in history]
    if baseline is not None:
        axes.draw_level(baseline)
    axes.plot(points, dots=True)
    axes.write(format_score(key, points[-1][1]), points[-1], anchor="end", shift=(-4, -7))
    top = 1.05 if key in SHARES else 1.1 * max(baseline or 0.0, *(value for _, value in points)) or 1.0
    axes.set(what, key.replace("_", " "), (0, None), (0, top))


def render_svg(name: str, draw: Callable[[Axes], None]) -> str:
    """Returns the figure that `draw` draws on its axes."""
    axes = Axes()
    draw(axes)
    return f"{figure_head(name)}{axes.render()}</svg>"


def render_svg_file(name: str, draw: Callable[[Axes], None]) -> str:
    """Returns the same, as a file of its own."""
    return render_svg(name, draw).replace("<svg ", f"<svg {ALONE} ", 1)
