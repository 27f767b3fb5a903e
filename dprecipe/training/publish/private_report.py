"""`private/report.html`: a run for its owner's eyes. Nothing in it is covered by the claim, and no release has it.

It has the scores, of the model and along the run, on training records and on held-out ones that may be private; of a
tuned run all runs;
what the records were found to be; and where the time went. An attempt that was stopped, or failed, has one too.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dprecipe import durable
from dprecipe.contract.drawing import CAP, MARK, Axes
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.facts import describe_data
from dprecipe.page import (
    escape_html,
    escape_lines,
    render_figures,
    render_page,
    render_section,
    render_table,
    render_tiles,
)
from dprecipe.release.figures import render_svg
from dprecipe.release.scores import SHARES, format_score
from dprecipe.screen import write_note
from dprecipe.timeline import phase
from dprecipe.training.program.evaluate import METRICS
from dprecipe.training.publish.private_scores import read_baseline, read_scores, render_measured
from dprecipe.training.run.folder import TRAINING, WHEN, RunFolder

NAME, TRIALS = "report.html", "trials.csv"
BANNER = (
    "Keep this page as safe as the records. It shows what the privacy claim does not cover: scores on private records, "
    "and counts of them. Publish nothing of it, and choose nothing by it that is released later: a choice by a private "
    "score spends privacy that no ledger has. The page for others is release/report.html."
)
Points = Sequence[Mapping[str, float]]


@phase("report")
def write_private_report(folder: RunFolder, plan: Plan, is_test_public: bool, end: str = "") -> None:
    """Writes the page into the private folder. `is_test_public`: the held-out records are declared public. `end`: how
    an attempt without a release ended, in words.

    No run needs it: any failure is reported in one line, and the run goes on.
    """
    path = folder.private / NAME
    try:
        points, _ = folder.history()
        checks = _read_text(folder.private / "data-check.txt")
        trials = _read_table(folder.private / TRIALS)
        scores = read_scores(folder.private / METRICS)
        page = render_private_report(plan, points, checks, _read_phases(folder), is_test_public, trials, end, scores)
        durable.replace_file(path, page.encode())
    except Exception as error:  # a finished run has its release, whatever a plotting library does
        write_note(f"{path}: can't be written ({type(error).__name__}); the run goes on without it")


def render_private_report(
    plan: Plan,
    points: Points,
    checks: str,
    phases: Sequence[tuple[str, float]],
    is_test_public: bool,
    trials: Sequence[Sequence[str]] = (),
    end: str = "",
    scores: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Renders the page. `points`: scores by step, as `metrics.csv` has them; `checks`: what the records were found to
    be; `phases`: names and seconds; `trials`: the header and the rows of `trials.csv`; `end`: how it ended without a
    release; `scores`: of the finished model, as `metrics.json` has them."""
    nouns = mechanism_of(plan.mechanism).certificate.progress[1]
    held_out = "public records" if is_test_public else "private held-out records"
    names = list_names(points)
    figures = render_figures(
        (
            render_svg(
                name.replace("_", ""),
                partial(draw_curves, points=points, name=name, what=nouns, baseline=read_baseline(scores, name)),
            ),
            f"Curves of {_say(name)} over {nouns}; the points are in private/metrics.csv.",
            _caption(name, points, held_out)
            + ("" if read_baseline(scores, name) is None else f" The dashed line is {held_out} without a model."),
        )
        for name in (names if len(points) > 1 else [])
    )
    measured = render_measured(scores, held_out, describe_data(plan.data).target)
    last = _list_tiles(points, names, held_out) if points else []
    sections = [
        '<section class="private"><h2>Private: not for release</h2>'
        f'<p class="plain">{escape_html(BANNER)}</p></section>',
        render_section("No release", f'<p class="plain">{escape_html(end)}</p>') if end else "",
        render_section("All runs of this tuned run", render_table(tuple(trials[0]), trials[1:])) if trials else "",
        *(measured or [render_section("The last scores", render_tiles(last)) if last else ""]),
        render_section("Along the run", figures) if figures else "",
        render_section("What the records were found to be", f"<pre>{escape_lines(checks)}</pre>") if checks else "",
        _phases(phases),
    ]
    header = f"<header><h1>{escape_html(plan.name)}</h1><p>the run for its owner alone</p></header>\n"
    return render_page(f"PRIVATE: {plan.name}", header + "\n".join(filter(None, sections)))


def list_names(points: Points) -> list[str]:
    """Returns the scores of a log, each once: those on training records under the name of the score itself."""
    names = dict.fromkeys(name.removeprefix(TRAINING) for point in points for name in point if name not in WHEN)
    return list(names)


def draw_curves(axes: Axes, points: Points, name: str, what: str, baseline: float | None = None) -> None:
    """Draws a score on held-out records, and the same on training records beside it. `baseline`: of a constant answer
    on held-out records, a dashed line."""
    if baseline is not None:
        axes.draw_level(baseline)
    for key, label, colour in ((name, "held-out", MARK), (TRAINING + name, "training", CAP)):
        known = [(point["step"], point[key]) for point in points if math.isfinite(point.get(key, math.nan))]
        if known:
            axes.plot(known, colour, dots=True, label=label)
    if any(TRAINING + name in point for point in points):
        axes.add_legend(at_bottom=name in SHARES)  # where the curves are not: shares rise
    axes.set(what, _say(name), (0, None), (0, 1.05) if name in SHARES else (None, None))


def _caption(name: str, points: Points, held_out: str) -> str:
    sets = [held_out] if any(name in point for point in points) else []
    sets += ["a sample of training records"] if any(TRAINING + name in point for point in points) else []
    text = _say(name)
    return f"{text[:1].upper()}{text[1:]} on {' and on '.join(sets)}."


def _list_tiles(points: Points, names: Sequence[str], held_out: str) -> list[tuple[str, str]]:
    tiles = []
    for name in names:
        for key, where in ((name, held_out), (TRAINING + name, "a sample of training records")):
            if key in points[-1]:
                tiles.append((format_score(name, points[-1][key]), f"{_say(name)} on {where}"))
    return tiles


def _say(name: str) -> str:
    return name.replace("_", " ")


def _phases(phases: Sequence[tuple[str, float]]) -> str:
    if not phases:
        return ""
    rows = [(name, f"{seconds:.1f} s") for name, seconds in phases]
    return render_section("Where the time of the last attempt went", render_table(("", ""), rows))


def _read_phases(folder: RunFolder) -> list[tuple[str, float]]:
    try:
        content = json.loads(durable.read_bytes(folder.private / "timing.json"))
        return [(str(each["phase"]), float(each["seconds"])) for each in content["phases"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _read_table(path: Path) -> list[list[str]]:
    return list(csv.reader(_read_text(path).splitlines()))


def _read_text(path: Path) -> str:
    try:
        return durable.read_bytes(path).decode("utf-8", "replace")
    except OSError:
        return ""
