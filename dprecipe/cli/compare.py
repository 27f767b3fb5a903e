"""`dprecipe compare`: score against ε of releases, runs and recipes, claim by claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dprecipe.cli.arguments import TextOrJson
from dprecipe.cli.files import replace_output
from dprecipe.comparison import (
    LEVEL,
    Contender,
    Interval,
    PairedTest,
    Standing,
    compare_all,
    contend_recipe,
    contend_release,
    draw_standing,
)
from dprecipe.faults import UsageFault
from dprecipe.planning.make import plan as make_plan
from dprecipe.policy.apply import enforce_on_plan
from dprecipe.recipe.read import read
from dprecipe.recipe.root import PointError
from dprecipe.release.figures import render_svg_file
from dprecipe.release.scores import SMALLER_IS_BETTER, format_score, spell_score
from dprecipe.release.verify import verify
from dprecipe.screen import align_columns, as_json, show_document, write_output

FORMATS = ("text", "json")
SCHEMA = "dprecipe.compare/v1"
WITHOUT = "without a model"
"""The column of what one constant answer reaches; left out where no run has it."""
MAX_PATHS = 200
SWEEP = "sweep.json"
"""The file by which the folder of a sweep is known."""
NOTE = (
    "To publish one of several runs on the same records because it scored best costs more than its own ε: "
    "`dprecipe tune` pays for the choice."
)


def compare(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Releases, run folders, folders of sweeps, or recipes.")
    ],
    metric: Annotated[str | None, typer.Option(help="Score to compare; by default the first that all have.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the table; the smallest of all by default.")] = None,
    output: TextOrJson = "text",
    plot: Annotated[
        Path | None, typer.Option(help="Also plot score against ε in this .svg, which is replaced.")
    ] = None,
    across: Annotated[
        str | None, typer.Option("--x", metavar="A.B", help="Plot against this key of the recipes, not ε.")
    ] = None,
) -> None:
    """Verifies the releases, plans the recipes, and prints them claim by claim; with `plot`, also draws them.

    Raises:
        CertificateInvalid, RecipeError, PlanRefused: one of them does not hold.
        UsageFault: an unknown format, a score or δ that there is not, nothing to compare at a path, or a plot of
            different claims.
    """
    if output not in FORMATS:
        raise UsageFault(f"unknown format {output}", f"choose one of {', '.join(FORMATS)}")
    if delta is not None and not 0 < delta < 1:
        raise UsageFault(f"--delta {delta:g} is no δ", "give a number between 0 and 1, such as 1e-6")
    if plot is not None and plot.suffix != ".svg":
        raise UsageFault(f"{plot}: the plot is an .svg", "name a file that ends so with --plot")
    if across is not None and plot is None:
        raise UsageFault("--x names an axis of a plot, and none is asked for", "add --plot FILE.svg")
    places = [place for path in dict.fromkeys(paths) for place in list_places(path)]
    if len(places) > MAX_PATHS:
        raise UsageFault(f"{len(places):,} runs and recipes are too many", f"compare at most {MAX_PATHS}")
    contenders = leave_out_copies([read_contender(place) for place in places])
    known = list(dict.fromkeys(key for each in contenders for key in each.scores))
    if metric is not None and metric not in known:
        raise UsageFault(
            f"no score {metric[:60]!r} was released", f"choose one of {', '.join(known) or 'none: there is no score'}"
        )
    result = compare_all(contenders, metric, delta)
    if plot is not None:
        _write_plot(result, plot, across)
    if output == "json":
        show_document(as_json({"schema": SCHEMA, "standings": [describe_standing(each) for each in result]}))
    else:
        write_output(render_standings(result))


def list_places(path: Path) -> list[Path]:
    """Lists the releases of a sweep's folder; any other path stands for itself.

    Raises:
        UsageFault: no run of the sweep has a release.
        RunFailed: its file is damaged.
    """
    if not (path / SWEEP).is_file():
        return [path]
    from dprecipe.sweep.folder import CELLS, read_sweep

    runs = [path / CELLS / name for name in read_sweep(path)["cells"]]
    found = [run for run in runs if (run / "release").is_dir()]
    if not found:
        raise UsageFault(f"{path}: no run of this sweep has a release", f"its scores are in {path / 'table.csv'}")
    return found


def read_contender(path: Path) -> Contender:
    """Returns a release or a certificate, the release in a run folder, or a recipe.

    Raises:
        CertificateInvalid, RecipeError, PlanRefused: it does not hold.
        UsageFault: there is nothing of these.
    """
    if path.suffix in (".yaml", ".yml") and not path.is_dir():
        return contend_recipe(enforce_on_plan(make_plan(read(path))), path)
    inner = path / "release"
    return contend_release(verify(inner if inner.is_dir() else path), path)


def leave_out_copies(contenders: Sequence[Contender]) -> list[Contender]:
    """Returns each run once: a copy of its release is no second run, and would make its score look surer than it is."""
    first: dict[str, Contender] = {}
    return [each for each in contenders if each.run is None or first.setdefault(each.run, each) is each]


def render_standings(result: Sequence[Standing]) -> list[str]:
    """Returns the standings as lines of text, which include texts of recipes."""
    lines: list[str] = []
    if len(result) > 1:
        lines += [
            f"{len(result)} different claims: no ε of one is compared with one of another",
            "",
        ]
    for standing in result:
        lines += [*_render_standing(standing), ""]
    if sum(not run.planned for standing in result for row in standing.rows for run in row.runs) > 1:
        lines.append(NOTE)
    return lines


def _render_standing(standing: Standing) -> list[str]:
    metric = standing.metric
    head = ("", f"ε at δ = {standing.delta:g}", spell_score(metric or "score"), WITHOUT, "runs", "time", "released")
    cells: list[tuple[str, ...]] = [head]
    for row in standing.rows:
        first = row.runs[0]
        converted = any(run.delta != standing.delta for run in row.runs)
        epsilon = "no bound" if math.isinf(row.epsilon) else f"{row.epsilon:.4g}" + (" *" if converted else "")
        cells.append(
            (
                row.name,
                epsilon,
                "planned" if first.planned else _show_score(row.score, metric),
                "–" if row.baseline is None or metric is None else format_score(metric, row.baseline),
                "–" if first.planned else f"{len(row.runs)}",
                "–" if row.seconds is None else f"{row.seconds.mean:,.0f} s",
                ", ".join(first.released) or "nothing",
            )
        )
    if all(row.baseline is None for row in standing.rows):
        cells = [line[:3] + line[4:] for line in cells]
    lines = [f"protects {standing.terms}", *(f"  {line}" for line in align_columns(cells))]
    lines += [
        f"  * converted from δ = {', '.join(sorted({f'{run.delta:g}' for run in row.runs}))}, by its events: {row.name}"
        for row in standing.rows
        if any(run.delta != standing.delta for run in row.runs)
    ]
    return [*lines, *_render_tests(standing)]


def _show_score(score: Interval | None, metric: str | None) -> str:
    if score is None or metric is None:
        return "not released"
    if score.half_width is None:
        return format_score(metric, score.mean)
    return f"{format_score(metric, score.mean)} ± {format_score(metric, score.half_width)}"


def _render_tests(standing: Standing) -> list[str]:
    """Returns a line for each test with the best method, and for each reason why pairs have none."""
    metric, best, untested = standing.metric or "", _find_best(standing), dict[str, list[str]]()
    lines, others = [], 0
    for test in standing.tests:
        if test.difference is None:
            untested.setdefault(test.reason, []).append(f"{test.second} − {test.first}")
        elif best in (test.first, test.second):
            lines.append(_render_test(test, test.difference, metric))
        else:
            others += 1
    if others:
        lines.append(f"  pairs without {best}, the best, are left out: {others:,} (--format json has them)")
    for reason, pairs in untested.items():
        names = pairs[0] if len(pairs) == 1 else f"{len(pairs)} pairs of methods"
        lines.append(f"  {names}: no test: {reason}")
    return lines


def _find_best(standing: Standing) -> str:
    """Returns the name of the method with the best score; empty where there is no score."""
    scores = {row.name: row.score.mean for row in standing.rows if row.score is not None}
    pick = min if standing.metric in SMALLER_IS_BETTER else max
    return pick(scores, key=lambda name: scores[name], default="")


def _render_test(test: PairedTest, difference: Interval, metric: str) -> str:
    names = f"  {test.second} − {test.first}"
    mean, half = difference.mean, difference.half_width or 0.0
    sign = "smaller is better" if metric in SMALLER_IS_BETTER else "larger is better"
    end = f"p = {test.p:.2g}" if test.p is not None else f"no test: {test.reason}"
    shown = f"{mean:+.4g}, {LEVEL:.0%} interval {mean - half:+.4g} to {mean + half:+.4g} ({sign})"
    return f"{names}: {shown}; paired over {test.seeds} seeds, {end}"


def describe_standing(standing: Standing) -> dict[str, Any]:
    """Returns a standing as in `dprecipe.compare/v1`."""
    terms = standing.terms
    return {
        "neighbouring": terms.neighbouring.value,
        "unit": terms.unit,
        "max_records": terms.max_records,
        "delta": standing.delta,
        "metric": standing.metric,
        "methods": [
            {
                "name": row.name,
                "mechanism": row.runs[0].mechanism,
                "planned": row.runs[0].planned,
                "epsilon": None if math.isinf(row.epsilon) else row.epsilon,
                "score": _describe_interval(row.score),
                "baseline": row.baseline,
                "seconds": _describe_interval(row.seconds),
                "released": list(row.runs[0].released),
                "runs": [
                    {
                        "path": run.place,
                        "seed": run.seed,
                        "epsilon": run.epsilon,
                        "delta": run.delta,
                        "scores": run.scores,
                        "seconds": run.seconds,
                    }
                    for run in row.runs
                ],
            }
            for row in standing.rows
        ],
        "tests": [
            {
                "first": test.first,
                "second": test.second,
                "seeds": test.seeds,
                "difference": _describe_interval(test.difference),
                "p": test.p,
                "reason": test.reason,
            }
            for test in standing.tests
        ],
    }


def _describe_interval(interval: Interval | None) -> dict[str, float | None] | None:
    return None if interval is None else {"mean": interval.mean, "half_width": interval.half_width}


def _write_plot(result: Sequence[Standing], plot: Path, across: str | None) -> None:
    if len(result) > 1:
        raise UsageFault(
            "these are different claims, and one plot of them would compare them", "plot those of one claim alone"
        )
    (standing,) = result
    if all(row.score is None or math.isinf(row.epsilon) for row in standing.rows):
        raise UsageFault("no score was released, so there is nothing to draw", "leave --plot out")
    try:
        svg = render_svg_file("compare", lambda axes: draw_standing(axes, standing, across))
    except PointError as error:
        raise UsageFault(
            f"--x {across}: {error}", "write a key of all recipes, such as training.optimizer.lr"
        ) from None
    replace_output(plot, svg.encode())
