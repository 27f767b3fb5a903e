"""Typing errors that mislead a YAML parser: a no-break space, and a colon without a space after it.

Both look right on a screen. A no-break space becomes part of the word beside it, and `epochs:10` is one word, so the
parser fails at a later line, or not at all."""

from __future__ import annotations

import re

from dprecipe.faults import Finding, Place

_ODD = "\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000\ufeff"
_AT_AN_EDGE = re.compile(f"^[ ]*(?P<a>[{_ODD}])|[:,\\[{{-](?P<b>[{_ODD}])|(?P<c>[{_ODD}])(?:[:,\\]}}]|$)")
_NO_SPACE = re.compile(r"^[ ]*(?:- )*(?P<key>[A-Za-z_][\w.-]*):(?P<value>[^\s:/\\].*)$")
MAX_LINES_BACK = 5


def find_odd_space(text: str, place: Place) -> Finding | None:
    """Returns the finding for an unquoted word of one line with a no-break space where YAML needs a space; else
    None.
    """
    match = _AT_AN_EDGE.search(text)
    if match is None:
        return None
    column = next(match.start(group) for group in "abc" if match[group] is not None)
    return _odd(ord(text[column]), Place(place.file, place.line, place.column + column))


def find_space_before(lines: list[str], line: int, file: str, first_column: int) -> Finding | None:
    """Returns the cause of a syntax error at a line (1-based), if it is such a typing error on the line or shortly
    above it.

    `first_column` is where the text begins on its first line.
    """
    for number in range(line, max(0, line - MAX_LINES_BACK), -1):
        if number > len(lines) or not lines[number - 1].strip():
            continue
        text, start = lines[number - 1], first_column if number == 1 else 1
        odd = find_odd_space(text, Place(file, number, start))
        if odd is not None:
            return odd
        match = _NO_SPACE.match(text)
        if match is not None and number < line:
            return report_missing_space(match["key"], match["value"], Place(file, number, start + match.start("key")))
    return None


def report_missing_space(key: str, value: str, place: Place) -> Finding:
    """Returns the finding for `key:value`."""
    shown = value.strip()
    shown = shown if len(shown) <= 40 else shown[:37] + "…"
    span = Place(place.file, place.line, place.column, len(key) + 1 + len(value.strip()))
    return Finding("Y118", f"no space after the colon of `{key}`", f"write `{key}: {shown}`", place=span)


def report_split_number(whole: int | float, rest: str, place: Place) -> Finding:
    """Returns the finding for `2,0` inside of braces, which is the number 2 and then a key."""
    shown = f"{whole},{rest}"
    span = Place(place.file, place.line, place.column, len(shown))
    remedy = f"write `{whole}.{rest}`"
    if isinstance(whole, int) and 0 < abs(whole) < 1000 and len(rest) == 3:
        remedy += f", or `{whole}{rest}`: the comma could be either"
    return Finding("Y119", f"`{shown}` is two values: the comma ends the first", remedy, place=span)


def _odd(code: int, place: Place) -> Finding:
    return Finding(
        "Y117", f"U+{code:04X} looks like a space, but YAML reads it as a letter", "type a space", place=place
    )
