"""The style of the report's page, and its parts. Every text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from dprecipe.release.untrusted import one_line

STYLE = """
:root{color-scheme:light;--ink:#1c2733;--soft:#5b6b7b;--line:#e3e8ee;--mark:#1f6feb;--good:#1a7f4b;--bad:#c2410c}
*{box-sizing:border-box}
body{margin:0;background:#f5f7fa;color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:62rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
header p{color:var(--soft);margin:.2rem 0 0}
h1{font-size:1.9rem;line-height:1.2;margin:0}
h2{font-size:1.12rem;margin:0 0 .8rem}
section{background:#fff;border:1px solid var(--line);border-radius:10px;padding:1.4rem 1.5rem;margin:1.2rem 0}
.claim{border-left:5px solid var(--mark)}
.claim p{font-size:1.14rem;margin:0}
.void{border-left-color:var(--bad)}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:1rem;margin:1.2rem 0 0}
.numbers div{border-top:2px solid var(--line);padding-top:.5rem}
.numbers b{display:block;font-size:1.3rem;font-weight:600;overflow-wrap:anywhere}
.numbers span,.small{color:var(--soft);font-size:.88rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(21rem,1fr));gap:1.2rem}
figure{margin:0}
figure svg{width:100%;height:auto}
figcaption{color:var(--soft);font-size:.88rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.93rem}
th{text-align:left;color:var(--soft);font-weight:600}
th,td{padding:.45rem .8rem .45rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:break-word}
tr:last-child td{border-bottom:0}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
.yes{color:var(--good);font-weight:600}
.no{color:var(--bad);font-weight:600}
ul{margin:0;padding-left:1.2rem}
code,pre{font:.88rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:#f5f7fa;border-radius:8px;padding:1rem;overflow-x:auto;margin:.6rem 0 0}
summary{cursor:pointer}
@media print{body{background:#fff}section{break-inside:avoid}}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def escape_html(text: str) -> str:
    """A text for the page, on one line: no markup, and no characters that change the direction of writing."""
    return html.escape(one_line(text))


def escape_lines(text: str) -> str:
    """The same for a text of several lines, such as a recipe."""
    return "\n".join(map(escape_html, text.expandtabs().splitlines()))


def render_section(title: str, body: str) -> str:
    """A section of a page. `body` is HTML."""
    return f"<section><h2>{escape_html(title)}</h2>{body}</section>"


def render_bullets(items: Iterable[str]) -> str:
    """A list of texts."""
    return f"<ul>{''.join(f'<li>{escape_html(item)}</li>' for item in items)}</ul>"


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, without a head row where all its cells are empty."""
    top = ""
    if any(head):
        top = f"<thead><tr>{''.join(f'<th>{escape_html(cell)}</th>' for cell in head)}</tr></thead>"
    body = "".join(f"<tr>{''.join(f'<td>{escape_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody></table></div>'


NOT_CHECKED = "recorded by the run, not checked"
"""The label of values that nobody can recompute."""


def render_number(value: Any) -> str:
    """A number, or a dash."""
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else f"{value:,}"
