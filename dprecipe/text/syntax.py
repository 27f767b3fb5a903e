"""The errors of the YAML parser, and typing errors that mislead it, as findings for the author of the text.

Two typing errors look right on a screen: a no-break space, and a colon without a space after it. A no-break space
becomes part of the word beside it, and `epochs:10` is one word, so the parser fails at a later line, or not at all.
"""

from __future__ import annotations

import re

from yaml.error import MarkedYAMLError

from dprecipe.faults import Finding, Place

_ANY = "check the indentation and the punctuation around here"
_KEY = re.compile(r"(?P<indent> *)(?:- +)*[A-Za-z_][\w.-]*[ ]*:(?: |$)")
_KEY_WITH_TEXT = re.compile(r"(?P<indent> *)[A-Za-z_][\w.-]*: +(?![|>{\[\"'&*!#])\S")
_BARE_WORD = re.compile(r"(?P<indent> *)(?P<word>[A-Za-z_][\w.-]*)[ ]*$")

# (pattern of PyYAML's context and problem, code, message, remedy); the first that matches wins.
_MEANINGS: tuple[tuple[str, str, str, str], ...] = (
    (r"found character '\\t'", "Y105", "a tab where YAML needs spaces", "indent with spaces"),
    (
        r"found character '(?P<c>.)' that cannot start",
        "Y104",
        "no value can begin with `{c}`",
        "put the text in quotes",
    ),
    (
        r"quoted scalar.*found unexpected end of stream|quoted scalar.*document separator",
        "Y104",
        "the quote that opens here is never closed",
        "close the quote",
    ),
    (
        r"found unknown escape character|expected escape sequence",
        "Y104",
        "an unknown escape in a quoted text",
        "write `\\\\` for a backslash, or use single quotes",
    ),
    (
        r"mapping values are not allowed",
        "Y104",
        "a second `:` where a value is expected",
        "quote the text if the `:` belongs to it; otherwise put the key on its own, indented line",
    ),
    (
        r"could not find expected ':'",
        "Y104",
        "a line that is neither `key: value` nor part of a text",
        "write `key: value`, with a space after the colon",
    ),
    (
        r"flow (?:mapping|sequence).*expected ',' or '(?P<c>.)'",
        "Y104",
        "a `,` or the closing `{c}` is missing",
        "separate the items by `,` and close the bracket",
    ),
    (
        r"flow .*(?:did not find expected|found unexpected)",
        "Y104",
        "the `{{` or `[` is not closed",
        "close the bracket",
    ),
    (
        r"expected <block end>|did not find expected|(?:sequence entries|mapping keys) are not allowed",
        "Y104",
        "the indentation does not fit the lines above",
        "indent the keys of one block by the same number of spaces",
    ),
    (
        r"expected the node content, but found '<stream end>'",
        "Y104",
        "the text ends inside a `{{` or `[`",
        "close the bracket",
    ),
    (r"expected the node content, but found '(?P<c>[^']*)'", "Y104", "no value can stand at `{c}`", _ANY),
    (r"alias|anchor", "Y107", "an anchor or alias without a name", "write the value out, or quote the text"),
    (r"tag", "Y109", "a tag that can't be read", "quote the text, or remove the `!`"),
    (r"directive|YAML document", "Y109", "a `%` directive is refused", "remove the line that begins with `%`"),
    (
        r"block scalar",
        "Y104",
        "what follows `|` or `>` can't be read",
        "begin the text on the next line, indented",
    ),
)


def explain_syntax_error(error: MarkedYAMLError, lines: list[str], file: str, column: int) -> Finding:
    """Returns the finding for a syntax error in these lines; `column` is where the text begins on its first line."""
    text = f"{error.context or ''} {error.problem or ''}"
    mark = error.problem_mark or error.context_mark
    start = error.context_mark
    if start is not None and mark is not None and start.line < mark.line and re.search("quoted|flow", text):
        mark = start  # the opening quote or bracket, not the line that could not be read any more
    place = Place(file, 1, column)
    if mark is not None:
        place = Place(file, mark.line + 1, mark.column + (column if mark.line == 0 else 1))
    for pattern, code, message, remedy in _MEANINGS:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            cause = _find_cause_above(lines, mark.line, file, column) if mark is not None and ":" in message else None
            if cause is not None:
                return cause
            return Finding(code, message.format(**match.groupdict()), remedy, place=place)
    return Finding("Y104", "the YAML can't be read here", _ANY, place=place)


def _find_cause_above(lines: list[str], line: int, file: str, first_column: int) -> Finding | None:
    """Returns the finding for a key at a line (0-based) whose `:` surprised the parser because of the line above it.

    YAML joins a deeper line to the unquoted text above it, so the parser stops at the key below the mistake. That is
    either a key without its colon (`training`), or a key with a value that is indented less than its neighbour."""
    key = _KEY.match(lines[line]) if line < len(lines) else None
    above = line - 1
    while above >= 0 and not lines[above].strip():
        above -= 1
    if key is None or above < 0:
        return None
    start = first_column if above == 0 else 1
    bare = _BARE_WORD.match(lines[above])
    if bare is not None and len(bare["indent"]) <= len(key["indent"]):
        place = Place(file, above + 1, start + bare.start("word"), len(bare["word"]))
        return Finding("Y104", f"no colon after the key `{bare['word']}`", f"write `{bare['word']}:`", place=place)
    value = _KEY_WITH_TEXT.match(lines[above])
    if value is not None and len(value["indent"]) < len(key["indent"]):
        message = f"the indentation differs from line {above + 1}, whose key has a value already"
        remedy = "indent the keys of one block by the same number of spaces"
        return Finding("Y104", message, remedy, place=Place(file, line + 1, 1, len(key["indent"])))
    return None


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
    return Finding(
        "Y117",
        f"U+{ord(text[column]):04X} looks like a space, but YAML reads it as a letter",
        "type a space",
        place=Place(place.file, place.line, place.column + column),
    )


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
