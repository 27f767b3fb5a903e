"""One of several runs: an ordinary attempt at the plan of its values, in a folder and with a ledger of its own.

Nothing of it is seen unless it wins, so that what a broken-off attempt drew was never released: a run that did not end
cleanly is made anew, with noise of its own, and is the same mechanism. What it costs is in the ledger of the whole.
"""

from __future__ import annotations

import shutil
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

REFUSED = "refused"
"""The file that stands for a run whose values make no model."""


@final
class Trials:
    """The runs of a tuned run, each made once; in whichever process."""

    def __init__(
        self, source: RecipeSource, place: Path, root: Path, constants: tuple[StageConstants, ...] = ()
    ) -> None:
        """`place`: the folder of all runs; `root`: where relative paths of data start; `constants`: what the paid steps
        of preprocessing released, before all runs."""
        self._planner = planner_of(source)
        self._place = place
        self._root = root
        self._constants = constants
        self._gathered: Gathered | None = None

    def folder(self, number: int) -> RunFolder:
        """Of one run."""
        return RunFolder(self._place / str(number))

    def is_done(self, number: int) -> bool:
        """Whether a run has ended."""
        return locate_result(self.folder(number)).is_dir() or self.is_refused(number)

    def is_refused(self, number: int) -> bool:
        """Whether its values make no model."""
        return (self._place / f"{number}.{REFUSED}").exists()

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
                trial = self._planner.plan_trial(point)
                runner = runner_of(trial)
                program = runner.prepare(trial, self._root, PythonInputs(gathered=self._gather(trial)))
            except PlanRefused:  # by its values alone: no record had a say
                self._refuse(number)
                return
            folder = _open_or_create(self.folder(number).path, trial)
            runner.attempt(trial, folder, program, Start(datetime.now(UTC), trial=True, constants=self._constants))

    def _gather(self, trial: Plan) -> Gathered:
        if trial.data != self._planner.whole.data:
            return gather_records(trial, self._root)
        if self._gathered is None:
            self._gathered = gather_records(trial, self._root)
        return self._gathered

    def _refuse(self, number: int) -> None:
        try:
            durable.make_folders(self._place)
            durable.replace_file(self._place / f"{number}.{REFUSED}", b"")
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
