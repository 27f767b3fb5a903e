"""One of several runs: an ordinary attempt at the plan of its values, in a folder and with a ledger of its own.

Nothing of it is seen unless it wins, so that what a broken-off attempt drew was never released: a run that did not end
cleanly is made anew, with noise of its own, and is the same mechanism. What it costs is in the ledger of the whole.
"""

from __future__ import annotations

import shutil
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from dprecipe import durable
from dprecipe.data.paid.constants import StageConstants
from dprecipe.faults import PlanRefused, RunFailed
from dprecipe.mechanisms.plan import Plan, RecipeSource
from dprecipe.planning.candidates import Point
from dprecipe.planning.trials import planner_of
from dprecipe.privacy import ledger as ledgers
from dprecipe.progress import silence_progress
from dprecipe.training.folder import RunFolder
from dprecipe.training.gather import Gathered, gather_records
from dprecipe.training.runner import PythonInputs, Start, runner_of
from dprecipe.training.trial_result import locate_result

Constants = tuple[StageConstants, ...]
"""What the paid steps of preprocessing released, before all runs."""
REFUSED, LOST = "refused", "lost"
"""The files that stand for a run whose values make no model, and for one that was lost with its machine."""


@final
class Trials:
    """The runs of a tuned run, each made once; in whichever process."""

    def __init__(self, source: RecipeSource, place: Path, root: Path) -> None:
        """`place`: the folder of all runs; `root`: where relative paths of data start."""
        self.planner = planner_of(source)
        self.gathered: Gathered | None = None
        """Records that runs with the whole's block `data` share; read when the first of them needs them."""
        self._place = place
        self._root = root
        self._constants: Constants = ()

    def at(self, place: Path | None, constants: Constants) -> Trials:
        """The same runs, in another folder where one is given, which start from what the paid steps of preprocessing
        released. Nothing is planned or read again."""
        other = copy(self)
        other._place, other._constants = place or self._place, constants
        return other

    def folder(self, number: int) -> RunFolder:
        """Of one run."""
        return RunFolder(self._place / str(number))

    def is_done(self, number: int) -> bool:
        """Whether a run has ended."""
        return kept_of(self.folder(number)).is_dir() or self.has_no_model(number)

    def has_no_model(self, number: int) -> bool:
        """Whether it has ended without a model, and comes last."""
        return self.is_refused(number) or (self._place / f"{number}.{LOST}").exists()

    def is_refused(self, number: int) -> bool:
        """Whether its values make no model."""
        return (self._place / f"{number}.{REFUSED}").exists()

    def refuse(self, number: int) -> None:
        """Record that its values make no model. Raises `RunFailed`."""
        self._mark(number, REFUSED)

    def lose(self, number: int) -> None:
        """Record that it was lost with its machine, and is not made again: it was charged with all runs, and comes
        last. Raises `RunFailed`."""
        self._mark(number, LOST)

    def make(self, number: int, point: Point) -> None:
        """Make a run, unless it has ended; it shows nothing.

        Raises:
            Interrupted: the user stopped it.
            DataFault, RunFailed: as a run of its own.
        """
        if self.is_done(number):
            return
        with silence_progress():
            try:
                trial = self.planner.plan_trial(point)
                runner = runner_of(trial)
                program = runner.prepare(trial, self._root, PythonInputs(gathered=self._gather(trial)))
            except PlanRefused:  # by its values alone: no record had a say
                self.refuse(number)
                return
            folder = _open_or_create(self.folder(number).path, trial)
            runner.attempt(trial, folder, program, Start(datetime.now(UTC), trial=True, constants=self._constants))

    def _gather(self, trial: Plan) -> Gathered:
        if trial.data != self.planner.whole.data:
            return gather_records(trial, self._root)
        if self.gathered is None:
            self.gathered = gather_records(trial, self._root)
        return self.gathered

    def _mark(self, number: int, end: str) -> None:
        try:
            durable.make_folders(self._place)
            durable.replace_file(self._place / f"{number}.{end}", b"")
        except OSError as error:
            raise RunFailed(f"{self._place}: can't be written: {error.strerror}", "make room on the disk") from None


def _open_or_create(path: Path, trial: Plan) -> RunFolder:
    """The folder of a run that ended its last attempt in order, or a new one."""
    folder = RunFolder(path)
    if path.exists():
        if _can_go_on(folder):
            return RunFolder.open(path, trial)
        shutil.rmtree(path)
    return RunFolder.create(path, trial)


def _can_go_on(folder: RunFolder) -> bool:
    """Whether all that was reserved did run, so that no step is lost."""
    try:
        ledger = ledgers.read(folder.ledger)
    except RunFailed:
        return False
    return ledger.stop_reason in ("interrupted", "completed") and not ledger.unsettled and not ledger.torn
