"""The style of the pages that dprecipe writes, and their parts. Every text is escaped; no page has a script."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from dprecipe.screen import make_printable

_LIGHT = (
    "--ink:#1c2733;--soft:#566573;--line:#dfe5ec;--back:#f5f7fa;--card:#fff;"
    "--mark:#1a62d6;--cap:#b93c0a;--good:#18774a;--bad:#b93c0a;--gold:#8a6408;--plum:#8250df"
)
_DARK = (
    "--ink:#e6edf3;--soft:#a3b0bd;--line:#323b45;--back:#0d1117;--card:#161b22;"
    "--mark:#6cb0ff;--cap:#f59056;--good:#4cc38a;--bad:#f59056;--gold:#d8a634;--plum:#b594f7"
)
FIGURE_COLOURS = {
    "#1c2733": "ink",
    "#5b6b7b": "soft",
    "#e3e8ee": "line",
    "#1f6feb": "mark",
    "#c2410c": "cap",
    "#1a7f4b": "good",
    "#b8860b": "gold",
    "#8250df": "plum",
}
"""Colours in drawn figures, and what each is on the page: so a figure follows the page from light to dark."""
_FIGURES = "".join(
    f'figure [{attribute}="{colour}"]{{{attribute}:var(--{name})}}'
    for colour, name in FIGURE_COLOURS.items()
    for attribute in ("fill", "stroke")
)
DARK_FIGURES = (
    "@media (prefers-color-scheme:dark){"
    + "".join(
        f'[{attribute}="{colour}"]{{{attribute}:{dict(pair.split(":") for pair in _DARK.split(";"))["--" + name]}}}'
        for colour, name in {**FIGURE_COLOURS, "#ffffff": "card"}.items()
        for attribute in ("fill", "stroke")
    )
    + "}"
)
"""The style of a figure that is a file of its own: in the dark it has the colours of a page, as do its white parts."""
STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
@media print{{:root{{color-scheme:light;{_LIGHT};--back:#fff}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--back);color:var(--ink)}}
body{{font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}}
main{{max-width:64rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}}
header p{{color:var(--soft);margin:.2rem 0 0}}
h1{{font-size:1.9rem;line-height:1.2;margin:0;overflow-wrap:anywhere}}
h2{{font-size:1.12rem;margin:0 0 .8rem}}
section{{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1.4rem 1.5rem;margin:1.2rem 0}}
section>p{{margin:.8rem 0 0}}
h2+p{{margin-top:0}}
.claim{{border-left:5px solid var(--mark)}}
.claim .plain{{font-size:1.14rem}}
.void,.private{{border-left:5px solid var(--bad)}}
.private h2{{color:var(--bad)}}
.numbers{{display:flex;flex-wrap:wrap;gap:1rem}}
.numbers div{{flex:1 1 var(--tile);min-width:8rem;border-top:2px solid var(--line);padding-top:.5rem}}
.numbers b{{display:block;font-size:1.3rem;line-height:1.3;font-weight:600;overflow-wrap:anywhere}}
.numbers span,.small,figcaption{{color:var(--soft);font-size:.88rem}}
.numbers span{{display:block;margin-top:.15rem}}
table+.numbers,p+.numbers{{margin-top:1.2rem}}
.plots{{display:flex;flex-wrap:wrap;gap:1.6rem}}
figure{{margin:0;flex:1 1 var(--plot);min-width:min(20rem,100%);max-width:27rem}}
figure svg{{display:block;width:100%;height:auto}}
figure text{{fill:var(--soft)}}
{_FIGURES}
table{{border-collapse:collapse;width:100%;font-size:.93rem}}
p+table,table+table,table+p{{margin-top:1rem}}
th{{text-align:left;color:var(--soft);font-weight:600}}
th,td{{padding:.45rem .8rem .45rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:break-word}}
tbody th{{min-width:9rem}}
td{{font-variant-numeric:tabular-nums}}
th[scope=row]+td{{overflow-wrap:anywhere}}
tr:last-child>*{{border-bottom:0}}
.yes{{color:var(--good);font-weight:600}}
.no{{color:var(--bad);font-weight:600}}
ul{{margin:0;padding-left:1.2rem}}
p,li,figcaption,summary{{overflow-wrap:anywhere}}
p+ul,ul+table{{margin-top:.6rem}}
code,pre{{font:.88rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}}
pre{{background:var(--back);border-radius:8px;padding:1rem;margin:.6rem 0 0}}
pre{{white-space:pre-wrap;overflow-wrap:anywhere}}
details{{margin-top:.8rem}}
summary{{cursor:pointer}}
summary:focus-visible{{outline:2px solid var(--mark);outline-offset:2px}}
@media (max-width:40rem){{
main{{padding:1.5rem .8rem 3rem}}
section{{padding:1.1rem 1rem}}
thead{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}}
table,tbody,tr,th,td{{display:block}}
th,td{{border:0;padding:.1rem 0}}
tr{{border-bottom:1px solid var(--line);padding:.5rem 0}}
tr:last-child{{border-bottom:0}}
td[data-of]:not([data-of=""])::before{{content:attr(data-of) ": ";color:var(--soft)}}
tr:has(td:nth-child(3)) td:first-child{{font-weight:600}}
td:first-child::before{{content:none!important}}
}}
@media print{{
body{{font-size:11pt}}
main{{max-width:none;padding:0}}
section{{border-radius:0;padding:.8rem 1rem;margin:.6rem 0}}
figure,tr,.numbers,.claim{{break-inside:avoid}}
tbody tr:first-child{{break-after:avoid}}
h2{{break-after:avoid}}
details::details-content{{content-visibility:visible;block-size:auto}}
}}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def escape_html(text: str) -> str:
    """Returns a text for the page, on one line: no markup, and no characters that change the direction of writing."""
    return html.escape(make_printable(text))


def escape_lines(text: str) -> str:
    """Returns the same for a text of several lines, such as a recipe."""
    return "\n".join(map(escape_html, text.expandtabs().splitlines()))


def render_page(title: str, body: str) -> str:
    """Returns a whole page. `body` is HTML; `title` is text."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape_html(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape_html(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def render_section(title: str, body: str) -> str:
    """Returns a section of a page. `body` is HTML."""
    return f"<section><h2>{escape_html(title)}</h2>{body}</section>"


def render_bullets(items: Iterable[str]) -> str:
    """Returns a list of texts."""
    return f"<ul>{''.join(f'<li>{escape_html(item)}</li>' for item in items)}</ul>"


def render_tiles(tiles: Sequence[tuple[str, str]]) -> str:
    """Renders large values, each above what it is. Their rows are of nearly equal numbers of tiles and fill the
    width."""
    if not tiles:
        return ""
    cells = "".join(f"<div><b>{escape_html(value)}</b><span>{escape_html(text)}</span></div>" for value, text in tiles)
    return f'<div class="numbers" style="--tile:{_share(len(tiles), 4)}%">{cells}</div>'


def render_figures(figures: Iterable[tuple[str, str, str]]) -> str:
    """Drawings (SVG), each with the text that stands for it where it can't be seen, and its caption."""
    cells = [
        f'<figure><div role="img" aria-label="{escape_html(alt)}">{svg}</div>'
        f"<figcaption>{escape_html(caption)}</figcaption></figure>"
        for svg, alt, caption in figures
    ]
    return f'<div class="plots" style="--plot:{_share(len(cells), 3)}%">{"".join(cells)}</div>' if cells else ""


def _share(count: int, limit: int) -> int:
    """Returns the least width of a cell, in percent: rows of equal numbers of cells as far as possible, of at most
    `limit`."""
    columns = -(-count // -(-count // limit))
    return int(100 / (columns + 0.5))  # with its gap, more than a share of one column more


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of texts. Without a head (all its cells empty), the first cell of a row is the row's own head."""
    body = "".join(f"<tr>{_render_cells(head, row)}</tr>" for row in rows)
    if not any(head):
        return f"<table><tbody>{body}</tbody></table>"
    top = "".join(f'<th scope="col">{escape_html(cell)}</th>' for cell in head)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _render_cells(head: Sequence[str], row: Sequence[str]) -> str:
    if not any(head):
        first, *rest = map(escape_html, row)
        return f'<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest)
    return "".join(
        f'<td data-of="{escape_html(name)}"{_judge(cell)}>{escape_html(cell)}</td>'
        for name, cell in zip(head, row, strict=True)
    )


def _judge(cell: str) -> str:
    """Returns the colour of a result; its word says the same."""
    return {"passed": ' class="yes"', "failed": ' class="no"'}.get(cell, "")


NOT_CHECKED = "recorded by the run, not checked"
"""The label of values that can't be recomputed."""


def render_number(value: Any) -> str:
    """Returns a number, or a dash."""
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else f"{value:,}"
