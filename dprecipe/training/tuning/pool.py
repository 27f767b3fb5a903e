"""All runs of a tuned run, one after the other or several at once, each in a process of its own.

The ledger of the whole stays with the process that leads. A process that is lost costs the run that it was making,
which is made again, and never the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import final

from dprecipe.contract.plan import RecipeSource
from dprecipe.faults import InternalFault
from dprecipe.planning.candidates import Point
from dprecipe.training.processes.workers import Workers
from dprecipe.training.tuning.draws import DrawnRuns
from dprecipe.training.tuning.trials import Constants, Trials


@final
class TrialPool:
    """Makes the runs in up to `jobs` processes."""

    def __init__(self, source: RecipeSource, place: Path, root: Path, jobs: int) -> None:
        self.trials = Trials(source, place, root)
        self._where = (source, place, root)
        self._constants: Constants = ()
        self._jobs = jobs

    def start_from(self, constants: Constants) -> None:
        """Makes all runs start from these."""
        self._constants = constants
        self.trials = self.trials.at(None, constants)

    def make_all(self, drawn: DrawnRuns, report: Callable[[int], None] = lambda done: None) -> None:
        """Makes all runs that have not ended; `report` gets the number that have.

        Raises:
            Interrupted: the user stopped it.
            DataFault, RunFailed: as a run of its own, before it began; or processes were lost again and again.
        """
        trials = self.trials
        work = trials.make if self._jobs == 1 else _make
        workers = Workers(self._jobs, work, _start_worker, (*self._where, self._constants))
        workers.do_all(
            list(enumerate(drawn.points)),
            lambda task: trials.is_done(task[0]),
            lambda: report(count_done(trials, drawn)),
        )


def count_done(trials: Trials, drawn: DrawnRuns) -> int:
    """Counts the runs that have ended."""
    return sum(trials.is_done(number) for number in range(len(drawn.points)))


_worker: Trials | None = None


def _start_worker(source: RecipeSource, place: Path, root: Path, constants: Constants) -> None:
    """Prepares a new process for the runs."""
    global _worker
    _worker = Trials(source, place, root).at(None, constants)


def _make(number: int, point: Point) -> None:
    if _worker is None:
        raise InternalFault("a process was asked for a run before it was ready")
    _worker.make(number, point)
