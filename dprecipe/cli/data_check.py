"""`dprecipe data check`: opens every declared source and compares it with the recipe. No torch; nothing is spent.

Faults are reported without a value, as everywhere. Counts of records, shares and places are for the owner alone: they
go to a terminal, and to a private page, which also draws what the records look like; a log or a pipe gets them only
where `--print-private` asks for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dprecipe import durable
from dprecipe.cli.arguments import DataRoot, Overrides, RecipePath
from dprecipe.cli.guard import list_lines
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.disjoint import check_files, check_records
from dprecipe.data.facts import Role
from dprecipe.data.files import data_root as find_root
from dprecipe.data.load import read
from dprecipe.data.problems import separate_faults
from dprecipe.data.profile import Bars, ColumnProfile, SourceProfile, profile_source
from dprecipe.data.records import Records
from dprecipe.data.schema import AnySource
from dprecipe.faults import DataFault, Finding, PlanRefused, RecipeError, UsageFault
from dprecipe.nonprivate.plan import check as check_public
from dprecipe.page import (
    escape_html,
    escape_lines,
    render_figures,
    render_page,
    render_section,
    render_table,
    render_tiles,
)
from dprecipe.planning import rules
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import Loaded, LoadedPublic, read_any, read_unfinished
from dprecipe.screen import is_output_watched, is_watched, write_note, write_output

QUIET_SECONDS, NOTE_SECONDS = 2.0, 10.0
LEFT_OUT = (
    "numbers of records, gaps and clamped values are left out, as others may read this output: see them in a terminal, "
    "or by --report FILE or --print-private"
)
FITS = "every source is what the recipe declares"
MAX_SHOWN = 12
"""Values of a column that the terminal shows; the page shows more."""


def data_check(
    recipe: RecipePath,
    overrides: Overrides = None,
    data_root: DataRoot = None,
    report: Annotated[
        Path | None, typer.Option(help="Also write a private page with histograms to this new .html file.")
    ] = None,
    print_private: Annotated[
        bool, typer.Option("--print-private", help="Print counts of private records although others may read them.")
    ] = False,
) -> int:
    """Prints what is wrong with the declared sources, then what they hold. Exit code: 1 for findings or faults. While
    values are left open, it compares names and kinds alone, and lists what is open.

    Raises:
        RecipeError: the recipe has errors; no data is read.
        UsageFault: the report can't be written there.
    """
    try:
        loaded = read_any(recipe, overrides or ())
    except RecipeError as error:
        if report is not None:
            raise
        return _check_unfinished(recipe, overrides or (), data_root, error)
    errors = [finding for finding in _check_rules(loaded) if finding.is_error]
    if errors:
        raise RecipeError(loaded.located(errors), loaded.texts)
    if report is not None:
        _check_place(report)
    faults, profiles = check_sources(loaded, find_root(data_root, recipe))
    if report is not None:
        _write_report(report, render_data_report(loaded.recipe.name, faults, profiles))
    shows_private = print_private or is_output_watched()
    write_output(_describe_faults(faults, shows_private))
    if shows_private:
        write_output(line for profile in profiles for line in describe_profile(profile))
    elif profiles:
        write_output(f"data.{profile.role}: read" for profile in profiles)
        write_output([LEFT_OUT])
    if report is not None:
        write_output([f"wrote {report}: private, as the records are"])
    return int(bool(faults))


def _check_unfinished(recipe: Path, overrides: Sequence[str], root: Path | None, error: RecipeError) -> int:
    """Checks names and kinds of a recipe whose only faults are blanks; returns the exit code.

    Raises:
        RecipeError: something else is wrong; no data is read.
    """
    from dprecipe.cli.render import as_lines
    from dprecipe.data.headers import check_headers
    from dprecipe.recipe.blanks import erase_blanks, is_blank

    if not all(map(is_blank, error.findings)):
        raise error
    data = erase_blanks(read_unfinished(recipe, overrides).get("data"))
    read, faults = check_headers(data if isinstance(data, dict) else {}, find_root(root, recipe))
    write_output(
        [
            *read,
            *(
                _describe_faults(faults, is_output_watched(), "every column is there, and of its kind")
                if faults or read
                else ()
            ),
        ]
    )
    write_output(as_lines(error.findings, error.texts))
    return 1


def _check_rules(loaded: Loaded | LoadedPublic) -> list[Finding]:
    if isinstance(loaded, LoadedPublic):
        return check_public(loaded.recipe)
    return rules.check(loaded.recipe, loaded.source.attachments)


def check_sources(loaded: Loaded | LoadedPublic, root: Path) -> tuple[list[DataFault], list[SourceProfile]]:
    """Returns the faults of all sources, and the profiles of those that could be read."""
    data = loaded.recipe.data
    plan = _try_plan(loaded)
    reads_train = plan is None or plan.mechanism_plan.reads_training_records
    identity = None if plan is None else plan.mechanism_plan.identity
    sources: tuple[tuple[Role, AnySource | None], ...] = (
        ("train", data.train if reads_train and not data.is_elsewhere else None),
        ("public", data.public),
        ("test", data.held_out),
    )
    faults: list[DataFault] = []
    profiles: list[SourceProfile] = []
    records: dict[Role, Records] = {}
    try:
        check_files(data, root)
    except DataFault as fault:
        faults.append(fault)
    for role, source in sources:
        if source is None:
            continue
        try:
            with _noting(f"reading data.{role}"):
                own, counts = read(source, data, root, role, identity if role == "train" else None)
            records[role] = own
            profiles.append(profile_source(own, counts, data, role))
        except DataFault as fault:
            faults.append(fault)
    if plan is not None:
        public = records.get("public")
        counted = None if public is None else len(public)
        faults += mechanism_of(plan.mechanism).find_file_faults(plan, root, counted)
    if not faults:
        try:
            check_records(data, root, records.get)
        except DataFault as fault:
            faults.append(fault)
    return separate_faults(faults), profiles


def _try_plan(loaded: Loaded | LoadedPublic) -> Plan | None:
    """Returns the plan; None for a recipe without privacy, and for one that has no plan."""
    if isinstance(loaded, LoadedPublic):
        return None
    try:
        return make_plan(loaded)
    except PlanRefused:
        return None


@contextmanager
def _noting(text: str) -> Iterator[None]:
    """Notes work that takes longer than `QUIET_SECONDS`; a terminal gets a second note, with the seconds. A log does
    not: how long reading takes shows how many records there are."""
    began, ended = time.monotonic(), threading.Event()

    def note() -> None:
        if ended.wait(QUIET_SECONDS):
            return
        write_note(text)
        while is_watched() and not ended.wait(NOTE_SECONDS):
            write_note(f"{text}: {time.monotonic() - began:.0f} s")

    thread = threading.Thread(target=note, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _check_place(report: Path) -> None:
    for folder in report.resolve().parents:
        if folder.name == "release" or (folder / "certificate.json").exists():
            raise UsageFault(f"{report} is in a release, and the report is private", "name a file elsewhere")
    if report.exists():
        raise UsageFault(f"{report} exists already", "name another file with --report")


def _write_report(report: Path, page: str) -> None:
    try:
        durable.replace_file(report, page.encode())  # for its owner alone
    except OSError as error:
        raise UsageFault(f"{report} can't be written: {error.strerror}", "name another file with --report") from None


def _describe_faults(faults: Sequence[DataFault], shows_private: bool, fits: str = FITS) -> Iterator[str]:
    for fault in faults:
        yield from list_lines(fault)
        if fault.private and shows_private:
            yield from (f"  private: {line}" for line in fault.private.split("\n"))
    if not faults:
        yield fits


def describe_profile(profile: SourceProfile) -> Iterator[str]:
    """Yields a source as lines for its owner's terminal."""
    units = "" if profile.units is None else f" of {profile.units:,} units"
    yield f"data.{profile.role}: {profile.records:,} records{units}"
    if profile.not_finite:
        yield f"  {say_share(profile.not_finite, profile.records)} have a value that is not finite"
    if profile.by_unit is not None and profile.units is not None:
        yield f"  records of a unit: {_describe_bars(profile.by_unit, profile.units)}"
    if profile.sequences is not None:
        yield f"  {profile.sequences.describe()}"
    if profile.label is not None:
        subject = "label" if profile.sequences is None else "learned tokens"
        yield f"  {subject}: {_describe_bars(profile.label, profile.records)}"
    for column in profile.columns:
        counts = column.counts
        shown = {"missing": counts.missing, "clamped": counts.below + counts.above, "other": counts.other}
        shares = [f"{say_share(count, profile.records)} {name}" for name, count in shown.items() if count]
        if counts.is_constant(profile.records):
            shares.append("every value is one end of the range: the column carries nothing")
        yield f"  {column.name} ({column.kind}): {', '.join(shares) or 'nothing missing, clamped or undeclared'}"


def _describe_bars(bars: Bars, of: int) -> str:
    shown = [f"{name}: {say_share(count, of)}" for name, count in zip(bars.names, bars.counts, strict=True) if count]
    more = [f"and {len(shown) - MAX_SHOWN:,} more"] if len(shown) > MAX_SHOWN else []
    return ", ".join(shown[:MAX_SHOWN] + more)


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
