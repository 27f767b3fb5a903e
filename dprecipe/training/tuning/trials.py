"""One of several runs: an ordinary attempt at the plan of its values, in a folder and with a ledger of its own.

What it costs is in the ledger of the whole.

| what ends an attempt | the run |
|---|---|
| a fault before it has charged anything | is made once the cause is gone |
| the user | goes on; it is made again where an attempt draws what holds for all of its steps, such as places |
| a kill, which is assumed to come from outside | is made again with noise of its own: nothing of it was seen |
| a fault of its own, after that | is lost: it comes last and is not made again; the fault may depend on its noise |
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, final, runtime_checkable

from dprecipe import durable
from dprecipe.contract.plan import Plan, RecipeSource
from dprecipe.data.copies import find_folder
from dprecipe.data.load import read
from dprecipe.data.paid.constants import StageConstants
from dprecipe.data.records import Records
from dprecipe.faults import InternalFault, Interrupted, PlanRefused, RunFailed
from dprecipe.planning.candidates import Point
from dprecipe.planning.trials import planner_of
from dprecipe.privacy import ledger as ledgers
from dprecipe.progress import silence_progress
from dprecipe.training.program.gather import Gathered, gather_records
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.runner import PythonInputs, Start, runner_of
from dprecipe.training.run.trial_result import locate_result
from dprecipe.training.tuning.score import SCORE, find_score_event, keep_score

Constants = tuple[StageConstants, ...]
"""Constants that the paid steps of preprocessing released, before all runs."""
REFUSED, NO_MODEL = "refused", "lost"
"""The files that stand for a run whose values make no model, and for one that was lost; the second says why."""


@runtime_checkable
class DrawsByAttempt(Protocol):
    """A plan that knows whether an attempt draws something that holds for all of its steps. A run that goes on in a
    later attempt draws it again, and is not the mechanism that one is which was never stopped."""

    @property
    def draws_by_attempt(self) -> bool:
        """True if it does."""


@final
class Trials:
    """The runs of a tuned run, each made once; in whichever process."""

    def __init__(self, source: RecipeSource, place: Path, root: Path) -> None:
        """`place`: the folder of all runs; `root`: where relative paths of data start."""
        self.planner = planner_of(source)
        self._gathered: Gathered | None = None
        self._score = find_score_event(self.planner.whole)
        self._place = place
        self._root = root
        self._constants: Constants = ()

    def at(self, place: Path | None, constants: Constants) -> Trials:
        """Returns the same runs, in another folder where one is given, which start from what the paid steps of
        preprocessing released. Nothing is planned or read again."""
        other = copy(self)
        other._place, other._constants = place or self._place, constants
        return other

    @property
    def pays_for_score(self) -> bool:
        """True if each run has a noisy score of its own."""
        return self._score is not None

    def folder(self, number: int) -> RunFolder:
        """Returns the folder of one run."""
        return RunFolder(self._place / str(number))

    def is_done(self, number: int) -> bool:
        """Returns True if a run has ended."""
        kept = locate_result(self.folder(number))
        has_score = self._score is None or (kept / SCORE).exists()
        return (kept.is_dir() and has_score) or self.has_no_model(number)

    def has_no_model(self, number: int) -> bool:
        """Returns True if a run has ended without a model, and comes last."""
        return self.is_refused(number) or (self._place / f"{number}.{NO_MODEL}").exists()

    def is_refused(self, number: int) -> bool:
        """Returns True if a run's values make no model."""
        return (self._place / f"{number}.{REFUSED}").exists()

    def refuse(self, number: int) -> None:
        """Records that its values make no model. Raises `RunFailed`."""
        self._mark(number, REFUSED)

    def lose(self, number: int, reason: str) -> None:
        """Records that it was lost, and is not made again: it was charged with all runs, and comes last. Raises
        `RunFailed`."""
        self._mark(number, NO_MODEL, reason)

    def has_begun(self, number: int) -> bool:
        """Returns True if a run has charged anything to its own ledger, so that it may have drawn noise."""
        return _count_charged(self.folder(number)) > 0

    def read_loss(self, number: int) -> str | None:
        """Returns why it was lost; None of a run that was not. Raises `OSError`."""
        path = self._place / f"{number}.{NO_MODEL}"
        return durable.read_bytes(path).decode("utf-8", "replace") if path.exists() else None

    def make(self, number: int, point: Point) -> None:
        """Makes a run, unless it has ended; it shows nothing.

        Raises:
            Interrupted: the user stopped it.
            DataFault, RunFailed: as a run of its own, before it charged anything; or the disk refuses.
        """
        if self.is_done(number):
            return
        with silence_progress():
            try:
                trial = self.planner.plan_trial(point)
                runner = runner_of(trial)
                program = runner.prepare(trial, self._root, PythonInputs(gathered=self.gather(trial)))
            except PlanRefused:  # by its values alone: no record had a say
                self.refuse(number)
                return
            kept = locate_result(self.folder(number))
            if not kept.is_dir():
                folder = _open_or_create(self.folder(number).path, trial)
                start = Start(datetime.now(UTC), trial=True, constants=self._constants)
                with self._losing(number, _count_charged(folder)):
                    runner.attempt(trial, folder, program, start)
            if self._score is not None and not self.is_done(number):
                held_out = self._read_held_out(trial)
                with self._losing(number):
                    keep_score(kept, self._score, held_out)

    @contextmanager
    def _losing(self, number: int, charged: float = -1) -> Iterator[None]:
        """Ends the run at a fault inside the block, if it has charged more than before."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            if _count_charged(self.folder(number)) <= charged:
                raise
            self.lose(number, describe_error(error))

    def gather(self, trial: Plan | None = None) -> Gathered:
        """Returns the records of a run, or of the whole; read once for all runs that have the whole's block `data`.

        Raises:
            DataFault: see `gather_records`.
        """
        if trial is not None and trial.data != self.planner.whole.data:
            return gather_records(trial, self._root)
        if self._gathered is None:
            self._gathered = gather_records(self.planner.whole, self._root)
        return self._gathered

    def _read_held_out(self, trial: Plan) -> Records:
        """Returns held-out records before any step of preprocessing: each is prepared by itself."""
        source = trial.data.held_out
        if source is None:
            raise InternalFault("a score is paid for, and there are no records")
        copies = find_folder(trial.runtime.prepared, trial.source.file)
        return read(source, trial.data, self._root, "test", copies=copies)[0]

    def _mark(self, number: int, end: str, text: str = "") -> None:
        with durable.writing(self._place, "free space on the disk"):
            durable.make_folders(self._place)
            durable.replace_file(self._place / f"{number}.{end}", text.encode("utf-8", "replace"))


def _open_or_create(path: Path, trial: Plan) -> RunFolder:
    """Returns the folder of a run that ended its last attempt in order, or a new one."""
    folder = RunFolder(path)
    if path.exists():
        if _can_go_on(folder, trial):
            return RunFolder.open(path, trial)
        shutil.rmtree(path)
    return RunFolder.create(path, trial)


def _can_go_on(folder: RunFolder, trial: Plan) -> bool:
    """Returns True if all that was reserved did run, so that no step is lost, and a run that goes on has the law of one
    that was never stopped: bounds for the best of several runs are for runs that are all the same mechanism."""
    try:
        ledger = ledgers.read(folder.ledger)
    except RunFailed:
        return False
    planned = trial.mechanism_plan
    begins_anew = isinstance(planned, DrawsByAttempt) and planned.draws_by_attempt
    ends = ("completed",) if begins_anew else ("interrupted", "completed")
    return ledger.stop_reason in ends and not ledger.unsettled and not ledger.torn


def _count_charged(folder: RunFolder) -> float:
    """Counts the events that a run's own ledger holds; infinity where it can't be read."""
    try:
        ledger = ledgers.read_unopened(folder.ledger)
    except FileNotFoundError:
        return 0
    except (OSError, RunFailed):
        return math.inf
    return 0 if ledger is None else sum(charge.count for charge in ledger.charges)


def describe_error(error: Exception) -> str:
    """Describes an error, for the owner's eyes alone."""
    return f"{type(error).__name__}: {str(error)[:300]}"
