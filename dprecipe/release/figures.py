"""The form of a figure in a report: `tidy_svg` writes it, and `find_flaw` checks a stranger's figure for it.

A browser and a pattern may read a broken tag or a comment differently. So the whole figure must follow a small grammar
that every reader understands in the same way: allow-listed elements with allow-listed attributes, each value of its own
form, properly nested; no comment, style, entity or reference out of the figure; text only in `text` elements, and only
words that the report may contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from xml.etree import ElementTree

MAX_FIGURE = 1 << 18
"""Characters of a figure; those of a report have about ten thousand."""
MAX_DEPTH = 24
"""Levels of nested elements; beyond a few hundred, browsers move them elsewhere."""
SIZE = (324.0, 208.0)
"""Width and height, in points."""
SPACES = ("{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}")

_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?(?:e-\d{1,3})?"
_NUMBERS = rf"{_NUMBER}(?:[ ,]{_NUMBER})*"
_COLOR = r"none|#[0-9a-f]{6}"
_TICK_LABEL = re.compile(r"[\d ,.eE+^%×−-]{0,24}")
_PAINT = {
    **dict.fromkeys(("fill", "stroke"), _COLOR),
    **dict.fromkeys(("stroke-width", "stroke-dashoffset"), r"\d(?:\.\d{1,4})?"),
    **dict.fromkeys(("opacity", "fill-opacity", "stroke-opacity"), r"[01](?:\.\d{1,4})?"),
    "stroke-linecap": "butt|square|round",
    "stroke-linejoin": "miter|round|bevel",
    "stroke-dasharray": rf"none|{_NUMBERS}",
}
_ID = "[a-z][0-9a-f]{10}"
_CLIP = {"clip-path": rf"url\(#{_ID}\)"}
_TRANSFORM = {"transform": rf"(?:translate|rotate|scale)\({_NUMBERS}\)(?: (?:translate|rotate|scale)\({_NUMBERS}\))*"}
_POSITION = dict.fromkeys(("x", "y"), _NUMBERS)
_FONT = {"font-size": r"(?:\d|1[0-2])(?:\.\d{1,4})?px", "text-anchor": "start|middle|end"}
ELEMENTS = {
    "g": {**_CLIP, **_TRANSFORM},
    "defs": {},
    "clipPath": {"id": _ID},
    "path": {"id": _ID, "d": rf"[MLCQz](?: (?:[MLCQz]|{_NUMBER}))*", **_CLIP, **_TRANSFORM, **_PAINT},
    "use": {"href": f"#{_ID}", **_POSITION, **_PAINT},
    "rect": {**_POSITION, **dict.fromkeys(("width", "height"), _NUMBER)},
    "text": {**_POSITION, **_TRANSFORM, **_FONT, **_PAINT},
    "tspan": {**_POSITION, **_FONT},
}
"""The attributes of each element, and the form of their values."""
TEXT_TAGS = ("text", "tspan")
_FORMS = {tag: {name: re.compile(form) for name, form in attributes.items()} for tag, attributes in ELEMENTS.items()}
_TOKEN = re.compile(
    r'<(?P<open>[A-Za-z]{1,10})(?P<attributes>(?: [a-z-]{1,20}="[^"<>&]*")*)(?P<empty>/?)>'
    r"|</(?P<close>[A-Za-z]{1,10})>|(?P<text>[^<>&]+)"
)
_ATTRIBUTE = re.compile(r' ([a-z-]+)="([^"]*)"')


def figure_head(name: str) -> str:
    """The first tag of the figure of this name."""
    width, height = SIZE
    return (
        f'<svg role="img" aria-label="{name}" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'stroke-linejoin="round" stroke-linecap="butt">'
    )


def tidy_svg(name: str, svg: str) -> str:
    """A figure drawn by matplotlib, in the form of a report's: styles become attributes, and what shows nothing
    (comments, metadata, names of groups) is removed."""
    root = ElementTree.fromstring(svg)
    return figure_head(name) + "".join("".join(_serialise(child)) for child in root) + "</svg>"


def _serialise(element: ElementTree.Element) -> Iterator[str]:
    tag = _local_name(element.tag)
    forms = _FORMS.get(tag)
    if forms is None:
        return
    declared = [part.partition(":") for part in element.get("style", "").split(";")]
    values = {_local_name(name): value for name, value in element.items()} | {n.strip(): v for n, _, v in declared}
    written = {name: " ".join(value.split()) for name, value in values.items() if name in forms}
    if tag == "g":
        written.pop("id", None)
    attributes = "".join(f' {name}="{value}"' for name, value in written.items())
    words = (element.text or "").strip() if tag in TEXT_TAGS else ""
    inner = words + "".join("".join(_serialise(child)) for child in element)
    yield f"<{tag}{attributes}>{inner}</{tag}>" if inner else f"<{tag}{attributes}/>"


def _local_name(name: str) -> str:
    for space in SPACES:
        name = name.removeprefix(space)
    return name


def find_flaw(figure: str, name: str, allowed: frozenset[str]) -> str | None:
    """Why `figure` is not a valid figure of this name in a report, or None. `allowed`: its texts, besides numbers.

    Guarantees: HTML and XML parsers read a figure without a flaw in the same way. It has the size of the other figures,
    refers to nothing outside itself, repeats no nested elements, and has no words but those allowed. Its lines may show
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
    place, open_tags, words = 0, list[str](), ""
    while place < len(body):
        token = _TOKEN.match(body, place)
        if token is None:
            return f"a figure has something that is neither a tag nor text: {body[place : place + 40]!a}"
        place = token.end()
        if (text := token["text"]) is not None:
            if not open_tags or open_tags[-1] not in TEXT_TAGS:
                return f"a figure has the text {text.strip()[:80]!a} outside a text element"
            words += text
        elif (tag := token["open"]) is not None:
            result = _find_tag_flaw(tag, token["attributes"], open_tags)
            if result is not None:
                return result
            if not token["empty"]:
                open_tags.append(tag)
        elif not open_tags or open_tags.pop() != token["close"]:
            return f"a figure closes {token['close']!a}, which is not open"
        elif token["close"] == "text":
            if words not in allowed and not _TICK_LABEL.fullmatch(words):
                return f"a figure has the text {words[:80]!a}, which the report does not"
            words = ""
        elif token["close"] == "tspan" and not _TICK_LABEL.fullmatch(words):
            return f"a figure has the text {words[:80]!a} in parts"
    return f"a figure does not close {open_tags[-1]!a}" if open_tags else None


def _find_tag_flaw(tag: str, attributes: str, open_tags: list[str]) -> str | None:
    """Why a tag may not appear inside the tags that are open, or None."""
    forms = _FORMS.get(tag)
    if forms is None or len(open_tags) >= MAX_DEPTH:
        return f"a figure has {tag!a}" + ("" if forms is None else f" nested more than {MAX_DEPTH} levels deep")
    if (open_tags and open_tags[-1] not in ("g", "defs", "clipPath", "text")) or (tag == "tspan") != (
        open_tags[-1:] == ["text"]
    ):
        return f"a figure has {tag!a} inside {open_tags[-1] if open_tags else 'svg'!a}"
    pairs = _ATTRIBUTE.findall(attributes)
    if any(first == second for first, second in pairwise(sorted(name for name, _ in pairs))):
        return f"a figure gives an attribute of {tag!a} twice"
    for name, value in pairs:
        if name not in forms or not forms[name].fullmatch(value):
            return f"a figure gives {tag!a} the attribute {name}={value[:40]!a}"
    return None
