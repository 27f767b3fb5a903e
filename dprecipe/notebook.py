"""Looks of objects in a notebook, and of the progress of work there. Every text is escaped.

Colours are those of the notebook's own text, so that a card is legible in a light theme and in a dark one. A notebook
that strips styles, such as one that is not trusted, still has headings, tables and lists.

A notebook keeps what it shows, and notebooks are passed on: nothing here may tell of private records.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, final

from dprecipe.page import escape_html, escape_lines, render_bullets, render_table, render_tiles

STYLE = (
    ".dprecipe{font:14px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;max-width:60em;"
    "border:1px solid rgba(127,127,127,.35);border-radius:8px;padding:12px 16px;margin:4px 0;color:inherit}"
    ".dprecipe h4{font-size:1.1em;font-weight:600;margin:0!important}"
    ".dprecipe p{margin:2px 0 6px}"
    ".dprecipe .soft,.dprecipe .numbers span,.dprecipe th{opacity:.75;font-weight:400}"
    ".dprecipe .numbers{display:flex;flex-wrap:wrap;gap:14px;margin:8px 0}"
    ".dprecipe .numbers div{flex:1 1 var(--tile);min-width:9em;border-top:2px solid rgba(127,127,127,.35);"
    "padding-top:4px}"
    ".dprecipe .numbers b{display:block;font-size:1.25em;font-weight:600}"
    ".dprecipe .numbers span{display:block;font-size:.9em}"
    ".dprecipe table{border-collapse:collapse;table-layout:auto!important;width:100%;margin:6px 0;"
    "font-size:1em;color:inherit}"
    ".dprecipe tr{background:none!important}"
    ".dprecipe th,.dprecipe td{text-align:left!important;vertical-align:top;border:0;white-space:normal;"
    "border-bottom:1px solid rgba(127,127,127,.25);padding:3px 14px 3px 0}"
    ".dprecipe tbody th{white-space:nowrap;width:1%}"
    ".dprecipe td{overflow-wrap:anywhere}"
    ".dprecipe ul{margin:4px 0 4px 1.3em;padding:0}"
    ".dprecipe details{margin:6px 0 0}"
    ".dprecipe summary{cursor:pointer}"
    ".dprecipe pre{font-size:.92em;white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0;background:none;"
    "color:inherit}"
    ".dprecipe .mark{border-left:4px solid rgba(127,127,127,.6);padding-left:10px;margin:8px 0}"
    ".dprecipe .error{border-color:#e5534b}.dprecipe .warning{border-color:#d8a634}"
    ".dprecipe .good{border-color:#3fb368}"
    ".dprecipe progress{width:100%;accent-color:#4c8dff}"
)
"""Style of every card; small, since each output of a notebook carries it."""


def render_card(title: str, *parts: str) -> str:
    """Returns a card of HTML parts under a title, which is text."""
    return f'<div class="dprecipe"><style>{STYLE}</style><h4>{escape_html(title)}</h4>{"".join(parts)}</div>'


def render_text(text: str, kind: str = "") -> str:
    """Returns a paragraph: `soft`, or marked at its side as `error`, `warning` or `good`."""
    if not text:
        return ""
    classes = {"": "", "soft": ' class="soft"'}.get(kind, f' class="mark {kind}"')
    return f"<p{classes}>{escape_html(text)}</p>"


def render_rows(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values."""
    return render_table(("", ""), rows)


def render_numbers(tiles: Sequence[tuple[str, str]]) -> str:
    """Renders large values, each above what it is."""
    return render_tiles(tiles)


def render_details(summary: str, items: Iterable[str]) -> str:
    """Returns a list that is closed at first."""
    return f"<details><summary>{escape_html(summary)}</summary>{render_bullets(items)}</details>"


def render_source(summary: str, text: str) -> str:
    """Returns a text of several lines that is closed at first."""
    return f"<details><summary>{escape_html(summary)}</summary><pre>{escape_lines(text)}</pre></details>"


def render_finding(kind: str, head: str, message: str, remedy: str) -> str:
    """Returns one finding: what it is and where, what is wrong, what to do."""
    remedy = f"<br>= {escape_html(remedy)}" if remedy else ""
    return f'<div class="mark {kind}"><b>{escape_html(head)}</b><br>{escape_html(message)}{remedy}</div>'


@final
class NotebookBar:
    """A bar that a notebook shows in place; of HTML alone, so that it needs no widgets and stays in a saved file."""

    SECONDS = 0.2
    """Between two drawings of it."""

    def __init__(self, what: str, unit: str, total: int, done: int = 0) -> None:
        self._what, self._unit, self._total, self._first = what, unit, total, done
        self._started = self._drawn = time.monotonic()
        self._handle = _display(self._render(done, ""), None)

    def show(self, done: int, status: str, end: bool = False) -> None:
        """Shows `done` parts; not more often than a reader can follow, but for the `end`."""
        now = time.monotonic()
        if end or now - self._drawn >= self.SECONDS:
            self._drawn = now
            _display(self._render(done, status), self._handle)

    def is_due(self) -> bool:
        """Returns True if the next call of `show` draws."""
        return time.monotonic() - self._drawn >= self.SECONDS

    def _render(self, done: int, status: str) -> str:
        seconds = time.monotonic() - self._started
        fresh = done - self._first
        left = f", {seconds / fresh * (self._total - done):.0f} s left" if fresh > 0 and done < self._total else ""
        text = f"{self._unit} {done:,} of {self._total:,} · {seconds:.0f} s{left}{' · ' if status else ''}{status}"
        bar = f'<progress max="{max(1, self._total)}" value="{done}"></progress>'
        return render_card(self._what, bar, render_text(text, "soft"))


def _display(content: str, handle: Any) -> Any:
    """Shows HTML in a notebook, instead of `handle`'s if there is one."""
    from IPython.display import HTML, display

    if handle is None:
        return display(HTML(content), display_id=True)
    handle.update(HTML(content))
    return handle
