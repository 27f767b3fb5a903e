"""The errors of the YAML parser, as findings for the author of the text."""

from __future__ import annotations

import re

from yaml.error import MarkedYAMLError

from dprecipe.faults import Finding, Place

_ANY = "check the indentation and the punctuation around here"

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


def explain_syntax_error(error: MarkedYAMLError, file: str, column: int) -> Finding:
    """The finding for a syntax error; `column` is where the text begins on its first line."""
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
            return Finding(code, message.format(**match.groupdict()), remedy, place=place)
    return Finding("Y104", "the YAML can't be read here", _ANY, place=place)
