"""The one place where text reaches a terminal, a log or a pipe.

Strangers write recipes, data files and certificates, and some of their text is printed. So everything goes through
`write_output`, `write_note` or `show_document`. They work line by line, escape characters that control a terminal,
change the direction of writing or start a new line, and only then add colour. No other module writes to the standard
streams.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

_RESET = "\x1b[0m"
_BOLD, _RED, _GREEN, _YELLOW, _CYAN, _DIM = (f"\x1b[{code}m" for code in ("1", "1;31", "1;32", "33", "36", "2"))
# Colours by the form of a line: the first pattern that matches decides, and its named group is coloured.
_COLOURS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), colour)
    for pattern, colour in (
        (r"^(?:\S.*?: )?(?P<c>error(?:\[\w+\])?)(?=[ :])|^(?P<d>internal error|refused)\b", _RED),
        (r"^\s*(?:\S.*?: )?(?P<c>warning(?:\[\w+\]| \w+)?)(?=[ :])", _YELLOW),
        (r"^\s*(?:\S.*?: )?(?P<c>accepted(?:\[\w+\]| \w+))(?=[ :])", _DIM),
        (r"^  +\| +(?P<c>\^+)$", _RED),
        (r"^  (?P<c>= .*)$", _CYAN),
        (r"^(?P<c>verified)$", _GREEN),
        (r"^(?P<c>completed|budget): spent", _GREEN),
        (r"^  (?P<c>(?:ε )?spen(?:t|ds) +ε? ?=?.*)$", _BOLD),
        (r"^    (?P<c>- .*)$", _DIM),
        (r"^  (?P<c>more: dprecipe explain .*)$", _DIM),
    )
)


def make_printable(text: str) -> str:
    """Returns one line, with line breaks, control characters and changes of writing direction escaped."""
    return "".join(c if c.isprintable() or c == "\t" else _escaped(c) for c in text)


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows of a table as lines, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def write_output(lines: Iterable[str]) -> None:
    """Writes lines to the standard output. Each stays one line, whatever it contains."""
    _write(sys.stdout, lines)


def write_note(*lines: str) -> None:
    """Writes lines to the standard error, unbuffered: progress and errors. In a notebook, where all that is written to
    it looks like an error, to the standard output."""
    _write(sys.stdout if is_notebook() else sys.stderr, lines)


def ask_line(question: str) -> str | None:
    """Asks a person in a terminal; returns the answer without blanks around it, or None at the end of the input."""
    sys.stderr.write(make_printable(question))
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip() if line else None


def can_ask() -> bool:
    """Returns True if a person sits at a terminal, who sees questions and can answer them."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def is_watched() -> bool:
    """Returns True if notes go to a terminal, and to no log that others may read."""
    return sys.stderr.isatty()


def is_notebook() -> bool:
    """Returns True if output goes to a notebook, which keeps it: there is a shell of IPython with a kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def is_output_watched() -> bool:
    """Returns True if the output goes to a terminal, and to no log or file that others may read."""
    return sys.stdout.isatty()


def show_document(text: str) -> None:
    """Writes a finished document (JSON of `as_json`, YAML of `text.dump`, CSV of numbers) without colours. Only control
    characters are escaped."""
    sys.stdout.write("\n".join(map(make_printable, text.split("\n"))))
    sys.stdout.flush()


def as_json(content: Any) -> str:
    """Returns a JSON document that is safe in a terminal: the same values, with control characters escaped."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text) + "\n"


def colour_line(line: str) -> str:
    """Returns a line with its colours."""
    for pattern, colour in _COLOURS:
        match = pattern.search(line)
        if match:
            start, end = next(match.span(group) for group in match.re.groupindex if match[group] is not None)
            return f"{line[:start]}{colour}{line[start:end]}{_RESET}{line[end:]}"
    return line


def _write(stream: TextIO, lines: Iterable[str]) -> None:
    # https://no-color.org
    is_plain = not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    paint = str if is_plain else colour_line
    stream.write("".join(f"{paint(make_printable(line))}\n" for line in lines))
    stream.flush()


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
