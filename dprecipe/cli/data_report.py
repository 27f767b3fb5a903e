"""The private page of `dprecipe data check`: what is wrong with the files, and what the records look like."""

from __future__ import annotations

from collections.abc import Sequence

from dprecipe.data.profile import Bars, ColumnProfile, SourceProfile
from dprecipe.faults import DataFault
from dprecipe.page import (
    escape_html,
    escape_lines,
    render_figures,
    render_page,
    render_section,
    render_table,
    render_tiles,
)

BANNER = (
    "Keep this page as safe as the records. It shows counts of private records, which no budget has paid for. Publish "
    "nothing of it, and choose nothing by it: declare ranges, categories and constants from what is known of the "
    "subject. What it is for: whether the files are those that the recipe means."
)
MAX_BARS = 40
WIDTH, HEIGHT, FOOT = 320, 120, 22
MARK, SOFT, LINE = "#1f6feb", "#5b6b7b", "#e3e8ee"
"""Colours of `page.FIGURE_COLOURS`, so that drawings follow the page from light to dark."""


def render_data_report(name: str, faults: Sequence[DataFault], profiles: Sequence[SourceProfile]) -> str:
    """Returns the page of a recipe's data."""
    header = f"<header><h1>{escape_html(name)}</h1><p>its data, for their owner alone</p></header>\n"
    private = (
        '<section class="private"><h2>Private: not for release</h2>'
        f'<p class="plain">{escape_html(BANNER)}</p></section>'
    )
    body = [private, _render_faults(faults), *(part for profile in profiles for part in _render_source(profile))]
    return render_page(f"PRIVATE: data of {name}", header + "\n".join(filter(None, body)))


def _render_faults(faults: Sequence[DataFault]) -> str:
    if not faults:
        return render_section("What is wrong", "<p>Nothing: the files are what the recipe declares.</p>")
    items = []
    for fault in faults:
        lines = [
            fault.message,
            *([f"= {fault.remedy}"] if fault.remedy else []),
            *([fault.private] if fault.private else []),
        ]
        items.append(f"<pre>{escape_lines(chr(10).join(lines))}</pre>")
    return render_section("What is wrong", "".join(items))


def _render_source(profile: SourceProfile) -> list[str]:
    title, tiles = f"data.{profile.role}", [(f"{profile.records:,}", "records")]
    if profile.units is not None:
        tiles += [
            (f"{profile.units:,}", "units"),
            (f"{profile.records / max(1, profile.units):.3g}", "records of a unit"),
        ]
    if profile.not_finite:
        tiles.append((f"{profile.not_finite:,}", "records with a value that is not finite: they contribute nothing"))
    rows = [[column.name, column.kind, *_shares(column, profile.records)] for column in profile.columns]
    table = render_table(("column", "kind", "missing", "clamped", "other"), rows) if rows else ""
    drawn = [("label", profile.label, profile.records), ("records of a unit", profile.by_unit, profile.units or 0)]
    drawn += [(column.name, column.bars, profile.records) for column in profile.columns]
    figures = [_figure(name, bars, of) for name, bars, of in drawn if bars is not None]
    note = '<p class="small">Missing, clamped and undeclared values, with their shares of these records.</p>'
    return [
        render_section(title, render_tiles(tiles) + (note + table if rows else "")),
        render_section(f"{title}: values as a model is given them", render_figures(figures)) if figures else "",
    ]


def _shares(column: ColumnProfile, records: int) -> list[str]:
    counts = column.counts
    clamped = (
        "" if column.kind not in ("numeric", "integer", "date") else say_share(counts.below + counts.above, records)
    )
    missing = "" if column.kind == "category" else say_share(counts.missing, records)
    other = say_share(counts.other, records) if column.kind == "category" else ""
    return [cell or "–" for cell in (missing, clamped, other)]


def say_share(count: int, of: int) -> str:
    """Returns a count and its share."""
    return f"{count:,} ({count / of:.2%})" if count and of else f"{count:,}"


def _figure(name: str, bars: Bars, of: int) -> tuple[str, str, str]:
    """Returns the drawing, the text that stands for it, and its caption."""
    shown = list(zip(bars.names, bars.counts, strict=True))[:MAX_BARS]
    rest = len(bars.names) - len(shown)
    most = max(shown, key=lambda bar: bar[1])
    caption = f"{name}: most often {most[0]}, {say_share(most[1], of)}"
    ends = (shown[0][0], shown[-1][0]) if rest else bars.ends
    text = f"Bars of {name}: {', '.join(f'{one} {count:,}' for one, count in shown)}"
    return draw_bars(shown, ends), text, caption + (f"; {rest:,} more are not drawn" if rest else "")


def draw_bars(bars: Sequence[tuple[str, int]], names: tuple[str, str]) -> str:
    """Returns a small bar chart as SVG, with these names below its ends; a bar's title is its name and count."""
    step, top = WIDTH / max(1, len(bars)), max([count for _, count in bars], default=0)
    parts = []
    for number, (name, count) in enumerate(bars):
        height = max(1.5 if count else 0.0, (HEIGHT - 4) * count / top) if top else 0.0
        parts.append(
            f'<rect x="{number * step + 0.08 * step:.2f}" y="{HEIGHT - height:.2f}" width="{0.84 * step:.2f}" '
            f'height="{height:.2f}" fill="{MARK}"><title>{escape_html(f"{name}: {count:,}")}</title></rect>'
        )
    ends = ((0, "start", names[0]), (WIDTH, "end", names[1]))
    texts = "".join(
        f'<text x="{x}" y="{HEIGHT + 15}" font-size="11" text-anchor="{anchor}" fill="{SOFT}">'
        f"{escape_html(_shorten(name))}</text>"
        for x, anchor, name in ends
    )
    axis = f'<line x1="0" y1="{HEIGHT}" x2="{WIDTH}" y2="{HEIGHT}" stroke="{LINE}"/>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT + FOOT}" xmlns="http://www.w3.org/2000/svg">{axis}{"".join(parts)}{texts}</svg>'


def _shorten(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"
