"""All runs of a sweep: each is an ordinary run of the recipe with the values of its cell, in a folder of its own.

| what ends a run | the sweep |
|---|---|
| the user | ends; a later call continues the run |
| a kill of its process | makes it again, or continues it |
| a fault of its own (a loss that is not finite) | keeps the reason for the table; a later call tries again |
| a fault that others would have, too (a data file, an account) | ends |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from dprecipe.account.faults import AccountRefused, AccountUnavailable
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.files import data_root as find_data_root
from dprecipe.faults import BudgetSpent, InternalFault, Interrupted, RunFailed, UsageFault
from dprecipe.libraries import importing_libraries
from dprecipe.nonprivate.plan import PublicPlan
from dprecipe.progress import silence_progress
from dprecipe.screen import write_note
from dprecipe.sweep.cells import PlannedCell, plan_cell
from dprecipe.sweep.folder import SweepFolder
from dprecipe.sweep.grid import SweepCell
from dprecipe.training.processes.workers import Workers
from dprecipe.training.run.request import RunOptions, request_run


@dataclass(frozen=True, slots=True)
class SweptRecipe:
    """A recipe to sweep: its file, `--set`, and the data root if one is named."""

    file: Path
    overrides: tuple[str, ...]
    data_root: Path | None


def make_all(
    swept: SweptRecipe,
    planned: Sequence[PlannedCell],
    folder: SweepFolder,
    jobs: int,
    report: Callable[[int], None] = lambda done: None,
) -> None:
    """Makes the runs of all cells that are not done, up to `jobs` at once; `report` gets the number that have ended.

    Raises:
        Interrupted: the user stopped it.
        DataFault, UsageFault, AccountRefused, AccountUnavailable: as a run of its own.
        RunFailed: processes were lost again and again.
    """
    if "WORLD_SIZE" in os.environ:
        raise UsageFault("a sweep starts processes of its own", "start it without torchrun; see --jobs")
    cells = [each.cell for each in planned]
    for cell in cells:
        folder.forget_failure(cell)

    def has_ended(cell: SweepCell) -> bool:
        return folder.is_done(cell) or folder.read_failure(cell) != ""

    tasks = [(swept, each.cell, each.texts, folder, jobs > 1) for each in planned]
    kinds = {each.plan.mechanism for each in planned if isinstance(each.plan, Plan)}
    Workers(jobs, make_cell, import_runners, (tuple(kinds),)).do_all(
        tasks, lambda task: has_ended(task[1]), lambda: report(sum(map(has_ended, cells)))
    )


def import_runners(kinds: Sequence[str]) -> None:
    """Imports what runs of these mechanisms need, before the first: a stop in the middle of an import breaks it.

    Raises:
        UsageFault, RunFailed: a library is missing, or can't be imported.
    """
    for kind in kinds:
        mechanism_of(kind).import_runner()


def make_cell(swept: SweptRecipe, cell: SweepCell, texts: str, folder: SweepFolder, silent: bool) -> None:
    """Makes or continues the run of one cell, unless it is done. `texts`: a digest of the texts that it was planned
    from.

    Raises:
        Interrupted, DataFault, UsageFault, AccountRefused, AccountUnavailable: see `make_all`.
    """
    if folder.is_done(cell):
        return
    if not silent:
        write_note(f"run {cell}")
    planned = plan_cell(swept.file, swept.overrides, cell)
    if planned.texts != texts:
        raise UsageFault("the recipe was changed while the sweep ran", "put it back, then continue with --resume")
    try:
        with silence_progress() if silent else nullcontext():
            _run(planned, swept, folder)
    except (AccountRefused, AccountUnavailable, InternalFault):
        raise
    except (RunFailed, BudgetSpent) as fault:
        folder.keep_failure(cell, fault.message or type(fault).__name__)


def _run(planned: PlannedCell, swept: SweptRecipe, folder: SweepFolder) -> None:
    plan, place = planned.plan, folder.locate(planned.cell)
    if isinstance(plan, PublicPlan):
        with importing_libraries():
            from dprecipe.training.run import nonprivate

        root = find_data_root(swept.data_root, plan.source.file)
        nonprivate.train(plan, root, place, resume=folder.has_begun(planned.cell))
        return
    request = request_run(plan, RunOptions(place, swept.data_root, resume=place.exists()))
    if request.place != "leader":
        raise InternalFault("a run of a sweep is to be part of another")
    with importing_libraries():
        from dprecipe.training.run import start

    start.run(request)


STOPPED = (Interrupted, KeyboardInterrupt)
"""The exceptions of a stop by the user, within a run and between two."""
