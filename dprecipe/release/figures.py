"""The form of a figure in a report: made by `tidy_svg`, and asked of a stranger's figure by `find_flaw`.

A browser reads HTML, and what it makes of a broken tag or of a comment is not what a pattern makes of it. So a figure
is held whole to a small grammar that every reader understands alike: allow-listed elements with allow-listed
attributes, each value of its own form, properly nested; no comment, no style, no entity, no reference out of the
figure; text only where words stand, and only words that the report may say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from xml.etree import ElementTree

MAX_FIGURE = 1 << 18
"""Characters of a figure. Those of a report have some ten thousand."""
MAX_DEPTH = 24
"""Elements inside each other; beyond some hundreds browsers put them elsewhere."""
SIZE = (403.2, 230.4)
"""Width and height, in points."""
SPACES = ("{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}")

_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?(?:e-\d{1,3})?"
_NUMBERS = rf"{_NUMBER}(?:[ ,]{_NUMBER})*"
_COLOR = r"none|#[0-9a-f]{6}"
_TICK = re.compile(r"[\d ,.eE+^%×−-]{0,24}")
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
_MOVED = {"transform": rf"(?:translate|rotate|scale)\({_NUMBERS}\)(?: (?:translate|rotate|scale)\({_NUMBERS}\))*"}
_PLACE = dict.fromkeys(("x", "y"), _NUMBERS)
_FONT = {"font-size": r"(?:\d|1[0-2])(?:\.\d{1,4})?px", "text-anchor": "start|middle|end"}
ELEMENTS = {
    "g": {**_CLIP, **_MOVED},
    "defs": {},
    "clipPath": {"id": _ID},
    "path": {"id": _ID, "d": rf"[MLCQz](?: (?:[MLCQz]|{_NUMBER}))*", **_CLIP, **_MOVED, **_PAINT},
    "use": {"href": f"#{_ID}", **_PLACE, **_PAINT},
    "rect": {**_PLACE, **dict.fromkeys(("width", "height"), _NUMBER)},
    "text": {**_PLACE, **_MOVED, **_FONT, **_PAINT},
    "tspan": {**_PLACE, **_FONT},
}
"""The attributes of each element, and the form of their values."""
WORDED = ("text", "tspan")
_FORMS = {tag: {name: re.compile(form) for name, form in held.items()} for tag, held in ELEMENTS.items()}
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
    """A figure that matplotlib drew, in the form of a report's: its styles are attributes, and what shows nothing
    (comments, metadata, names of groups) is gone."""
    root = ElementTree.fromstring(svg)
    return figure_head(name) + "".join("".join(_written(child)) for child in root) + "</svg>"


def _written(element: ElementTree.Element) -> Iterator[str]:
    tag = _bare(element.tag)
    forms = _FORMS.get(tag)
    if forms is None:
        return
    declared = [part.partition(":") for part in element.get("style", "").split(";")]
    given = {_bare(name): value for name, value in element.items()} | {n.strip(): v for n, _, v in declared}
    kept = {name: " ".join(value.split()) for name, value in given.items() if name in forms}
    if tag == "g":
        kept.pop("id", None)
    attributes = "".join(f' {name}="{value}"' for name, value in kept.items())
    words = (element.text or "").strip() if tag in WORDED else ""
    inner = words + "".join("".join(_written(child)) for child in element)
    yield f"<{tag}{attributes}>{inner}</{tag}>" if inner else f"<{tag}{attributes}/>"


def _bare(name: str) -> str:
    for space in SPACES:
        name = name.removeprefix(space)
    return name


def find_flaw(figure: str, name: str, allowed: frozenset[str]) -> str | None:
    """Why a figure is not the one of this name in a report, else None. `allowed`: what it may say besides numbers.

    Guarantees: a figure without a flaw is read alike by HTML and XML, is as large as others, refers to nothing outside
    of itself, nests nothing in what it repeats, and has no words but those allowed. Its lines may show anything.
    """
    if len(figure) > MAX_FIGURE:
        return f"a figure is longer than {MAX_FIGURE // 1024} KiB"
    start = figure_head(name)
    if not figure.startswith(start):
        return "a figure does not begin as a figure of a report does"
    if not figure.endswith("</svg>"):
        return "a figure does not end as a figure of a report does"
    body = figure[len(start) : -len("</svg>")]
    result = _flaw(body, allowed)
    if result is not None:
        return result
    try:
        ElementTree.fromstring(figure)
    except ElementTree.ParseError:
        return "a figure is no XML"
    return None


def _flaw(body: str, allowed: frozenset[str]) -> str | None:
    place, opened, words = 0, list[str](), ""
    while place < len(body):
        token = _TOKEN.match(body, place)
        if token is None:
            return f"a figure holds what is neither a tag nor words: {body[place : place + 40]!a}"
        place = token.end()
        if (text := token["text"]) is not None:
            if not opened or opened[-1] not in WORDED:
                return f"a figure says {text.strip()[:80]!a} where no words stand"
            words += text
        elif (tag := token["open"]) is not None:
            result = _tag_flaw(tag, token["attributes"], opened)
            if result is not None:
                return result
            if not token["empty"]:
                opened.append(tag)
        elif not opened or opened.pop() != token["close"]:
            return f"a figure closes {token['close']!a}, which is not open"
        elif token["close"] == "text":
            if words not in allowed and not _TICK.fullmatch(words):
                return f"a figure says {words[:80]!a}"
            words = ""
        elif token["close"] == "tspan" and not _TICK.fullmatch(words):
            return f"a figure says {words[:80]!a} in parts"
    return f"a figure does not close {opened[-1]!a}" if opened else None


def _tag_flaw(tag: str, attributes: str, opened: list[str]) -> str | None:
    """Why a tag may not stand inside of those that are open."""
    forms = _FORMS.get(tag)
    if forms is None or len(opened) >= MAX_DEPTH:
        return f"a figure holds {tag!a}" + ("" if forms is None else f" in more than {MAX_DEPTH} others")
    if (opened and opened[-1] not in ("g", "defs", "clipPath", "text")) or (tag == "tspan") != (
        opened[-1:] == ["text"]
    ):
        return f"a figure holds {tag!a} inside of {opened[-1] if opened else 'svg'!a}"
    pairs = _ATTRIBUTE.findall(attributes)
    if any(left == right for left, right in pairwise(sorted(name for name, _ in pairs))):
        return f"a figure gives an attribute of {tag!a} twice"
    for name, value in pairs:
        if name not in forms or not forms[name].fullmatch(value):
            return f"a figure gives {tag!a} the attribute {name}={value[:40]!a}"
    return None
