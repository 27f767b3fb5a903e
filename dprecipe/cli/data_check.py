"""`dprecipe data check`: opens every declared source and holds it against the recipe. No torch; nothing is spent.

Faults are reported without a value, as everywhere. Counts of records, shares and places are for the owner alone: they
go to a terminal, and to a private page; a log or a pipe gets them only where `--print-private` asks for it.
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
from dprecipe.cli.data_report import render_data_report, say_share
from dprecipe.data.disjoint import check_files, check_records
from dprecipe.data.facts import Role
from dprecipe.data.files import data_root as find_root
from dprecipe.data.load import read
from dprecipe.data.profile import Bars, SourceProfile, profile_source
from dprecipe.data.records import Records
from dprecipe.data.schema import AnySource
from dprecipe.faults import DataFault, Finding, PlanRefused, RecipeError, UsageFault
from dprecipe.nonprivate import rules as nonprivate_rules
from dprecipe.planning import rules
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import Loaded, LoadedPublic, read_any, read_unfinished
from dprecipe.screen import is_output_watched, is_watched, write_note, write_output

QUIET_SECONDS, NOTE_SECONDS = 2.0, 10.0
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
        write_output(["counts are for a terminal, --report FILE, or --print-private: here others may read them"])
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
        return nonprivate_rules.check(loaded.recipe)
    return rules.check(loaded.recipe, loaded.source.attachments)


def check_sources(loaded: Loaded | LoadedPublic, root: Path) -> tuple[list[DataFault], list[SourceProfile]]:
    """Returns the faults of all sources, and the profiles of those that could be read."""
    data = loaded.recipe.data
    reads_train, identity = _training_reads(loaded)
    sources: tuple[tuple[Role, AnySource | None], ...] = (
        ("train", data.train if reads_train else None),
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
    if not faults:
        try:
            check_records(data, root, records.get)
        except DataFault as fault:
            faults.append(fault)
    return faults, profiles


def _training_reads(loaded: Loaded | LoadedPublic) -> tuple[bool, str | None]:
    """Returns whether a run reads the training records at all, and the column that names them, if there is one."""
    if isinstance(loaded, LoadedPublic):
        return True, None
    try:
        planned = make_plan(loaded).mechanism_plan
    except PlanRefused:
        return True, None
    return planned.reads_training_records, planned.identity


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
    """Yields all faults, each once: both sides of a split report a wrong size."""
    seen: dict[tuple[str, str], list[DataFault]] = {}
    for fault in faults:
        seen.setdefault((fault.message, fault.remedy), []).append(fault)
    for fault, *others in seen.values():
        first, *more = fault.message.split("\n")
        yield f"error: {first}"
        yield from (line if line.startswith("- ") else f"  | {line}" for line in more)
        if fault.remedy:
            yield f"  = {fault.remedy}"
        private = "\n".join(dict.fromkeys(one.private for one in (fault, *others) if one.private))
        if private and shows_private:
            yield from (f"  private: {line}" for line in private.split("\n"))
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
        yield f"  {column.name} ({column.kind}): {', '.join(shares) or 'nothing missing, clamped or undeclared'}"


def _describe_bars(bars: Bars, of: int) -> str:
    shown = [f"{name}: {say_share(count, of)}" for name, count in zip(bars.names, bars.counts, strict=True) if count]
    more = [f"and {len(shown) - MAX_SHOWN:,} more"] if len(shown) > MAX_SHOWN else []
    return ", ".join(shown[:MAX_SHOWN] + more)
