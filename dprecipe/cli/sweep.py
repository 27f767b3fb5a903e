"""`dprecipe sweep`: a run for each combination of values and each seed, a table and figures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dprecipe import __version__
from dprecipe.cli.arguments import DataRoot, Overrides, RecipePath, Resume
from dprecipe.cli.files import limit_notes
from dprecipe.faults import Interrupted, RunFailed, UsageFault
from dprecipe.libraries import TRAINING, check_libraries
from dprecipe.screen import align_columns, write_note, write_output

if TYPE_CHECKING:
    from dprecipe.sweep.cells import PlannedCell
    from dprecipe.sweep.folder import SweepFolder
    from dprecipe.sweep.grid import Grid
    from dprecipe.sweep.results import CellResult


def sweep(
    recipe: RecipePath,
    over: Annotated[
        list[str] | None, typer.Option("--over", metavar="A.B=C,D", help="A key and its values. Repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each combination, with seeds of their own.")] = 1,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the sweep; never overwritten.")] = None,
    resume: Resume = False,
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs at once, each in its own process.")] = 1,
    plan: Annotated[bool, typer.Option("--plan", help="Print what each run would spend; train nothing.")] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Declare that the training records are public or synthetic.")
    ] = False,
    metric: Annotated[str | None, typer.Option(help="Score of table and figures; the first by default.")] = None,
    data_root: DataRoot = None,
) -> int:
    """Plans all runs, then makes those that are left; returns the exit code.

    Raises:
        UsageFault: no such sweep, or one whose scores may not be looked at; nothing was read.
        RecipeError, PlanRefused: with what is wrong with every cell, before any run.
        AccountRefused: the account can't hold all runs.
        Interrupted: the user stopped it; `--resume` continues.
        RunFailed: some runs failed; the table says why.
    """
    write_note(f"dprecipe {__version__}: sweeping {recipe}")
    # Imported after the first words: these take most of a second.
    from dprecipe.recipe.read import read_unfinished
    from dprecipe.sweep.cells import plan_cells
    from dprecipe.sweep.folder import SweepFolder
    from dprecipe.sweep.grid import read_grid
    from dprecipe.sweep.looking import NOTE, check_allowed, price_looking

    given = (*(overrides or ()), *([NOTE] if public else []))
    grid = read_grid(over or (), seeds, _find_seed(read_unfinished(recipe, given)))
    note, total = limit_notes(), len(grid.list_cells())
    planned = plan_cells(recipe, given, grid, lambda done: note(f"planned {done} of {total} runs"))
    if plan:
        write_output(list_plans(grid, planned))
        return 0
    check_allowed(planned, public)
    folder = SweepFolder(out or Path("runs") / f"{planned[0].plan.name}-sweep")
    said = folder.check(grid, planned, resume)
    new = [each for each in planned if not folder.has_begun(each.cell)]
    write_output([price_looking(planned, new, public), *said])
    check_libraries("training", *TRAINING)
    folder.begin(planned[0].plan.name, grid, planned, resume)
    return _make(recipe, given, data_root, grid, planned, folder, jobs, metric)


def _make(
    recipe: Path,
    overrides: tuple[str, ...],
    data_root: Path | None,
    grid: Grid,
    planned: Sequence[PlannedCell],
    folder: SweepFolder,
    jobs: int,
    metric: str | None,
) -> int:
    from dprecipe.sweep import run as runs
    from dprecipe.sweep.results import read_result

    swept = runs.SweptRecipe(recipe, overrides, data_root)
    total = len(planned)
    try:
        runs.make_all(swept, planned, folder, jobs, lambda done: write_note(f"{done} of {total} runs have ended"))
    except runs.STOPPED:
        done = sum(folder.is_done(each.cell) for each in planned)
        again = [word for word in sys.argv[1:] if word != "--resume"] + ["--resume"]
        raise Interrupted(
            f"stopped: {done} of {total} runs are done, and kept in {folder.path}",
            f"continue with: {shlex.join(['dprecipe', *again])}",
        ) from None
    results = [read_result(each, folder) for each in planned]
    _show(grid, results, folder, metric)
    failed = [each for each in results if each.failure]
    if failed:
        raise RunFailed(
            f"{len(failed)} of {total} runs failed; the first: {failed[0].cell}: {failed[0].failure}",
            "the table has the reasons; --resume tries them once more",
        )
    return 0


def _show(grid: Grid, results: Sequence[CellResult], folder: SweepFolder, metric: str | None) -> None:
    """Writes the table and the figures, and prints the means.

    Raises:
        UsageFault: the runs have no such score.
    """
    from dprecipe.sweep.figures import draw_sweep
    from dprecipe.sweep.folder import FIGURES, TABLE
    from dprecipe.sweep.results import gather_rows, list_metrics, render_rows, write_table

    known = list_metrics(results)
    if metric is not None and metric not in known:
        raise UsageFault(f"the runs have no score {metric[:60]!r}", f"choose one of {', '.join(known) or 'none'}")
    chosen = metric or (known[0] if known else None)
    rows = gather_rows(grid, results, chosen)
    figures = None if chosen is None else draw_sweep(grid, rows, chosen)
    folder.write_results(write_table(grid, results), figures)
    wrote = [str(folder.path / name) for name in (TABLE, *([] if figures is None else [FIGURES]))]
    write_output([*render_rows(grid, rows, chosen), f"wrote {' and '.join(wrote)}"])


def list_plans(grid: Grid, planned: Sequence[PlannedCell]) -> list[str]:
    """Returns a line for each combination of values: what is solved for it, and what it would spend."""
    from dprecipe.contract.plan import Plan

    lines = [f"{planned[0].plan.name}: {len(grid.list_points())} plans, {len(planned)} runs; nothing is trained"]
    cells: list[list[str]] = [[*grid.keys, "ε", "δ", "solved"]]
    for each in planned:
        if each.cell.seed != grid.seeds[0]:
            continue
        if isinstance(each.plan, Plan):
            solved = ", ".join(f"{path} = {value:g}" for path, value in each.plan.solved.items())
            spent = [f"{each.plan.guarantee.epsilon:g}", f"{each.plan.guarantee.delta:g}", solved or "–"]
        else:
            spent = ["none", "none", f"{each.plan.length.steps:,} steps"]
        cells.append([*each.cell.values, *spent])
    return [*lines, *(f"  {line}" for line in align_columns(cells))]


def _find_seed(recipe: object) -> int:
    """Returns the first seed: that of the recipe, if it states one."""
    runtime = recipe.get("runtime") if isinstance(recipe, dict) else None
    seed = runtime.get("seed") if isinstance(runtime, dict) else None
    return seed if type(seed) is int and seed >= 0 else 0
