"""All runs of a tuned run, one after the other or several at once, each in a process of its own.

The ledger of the whole stays with the process that leads. A process that is lost costs the run that it was making,
which is made again, and never the budget.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import final

from dprecipe.contract.plan import RecipeSource
from dprecipe.faults import InternalFault, Interrupted, RunFailed
from dprecipe.libraries import ignore_all_warnings
from dprecipe.planning.candidates import Point
from dprecipe.training.run.signals import stopping_on_signals
from dprecipe.training.tuning.draws import DrawnRuns
from dprecipe.training.tuning.trials import Constants, Trials

MAX_LOSSES = 3
"""Largest number of times that processes may be lost before the tuned run gives up."""
STOPPED = Interrupted("stopped")


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
        left = [number for number in range(len(drawn.points)) if not self.trials.is_done(number)]
        losses = 0
        while left:
            try:
                if self._jobs == 1:
                    self._make_here(left, drawn, report)
                else:
                    self._make_in_processes(left, drawn, report)
            except BrokenProcessPool:
                losses += 1
                if losses > MAX_LOSSES:
                    raise RunFailed(
                        "processes that make the runs were killed again and again",
                        "if memory was short, continue with --resume and fewer --jobs; nothing more is spent",
                    ) from None
            left = [number for number in left if not self.trials.is_done(number)]

    def _terms(self) -> tuple[RecipeSource, Path, Path, Constants, int]:
        return (*self._where, self._constants, max(1, (os.cpu_count() or 1) // self._jobs))

    def _make_here(self, left: list[int], drawn: DrawnRuns, report: Callable[[int], None]) -> None:
        for number in left:
            self.trials.make(number, drawn.points[number])
            report(count_done(self.trials, drawn))

    def _make_in_processes(self, left: list[int], drawn: DrawnRuns, report: Callable[[int], None]) -> None:
        stopped = threading.Event()
        context = multiprocessing.get_context("spawn")
        with (
            stopping_on_signals(stopped.set),
            _executor(min(self._jobs, len(left)), context, self._terms()) as executor,
        ):
            waiting: set[Future[None]] = {executor.submit(_make, n, drawn.points[n]) for n in left}
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                if stopped.is_set():
                    _stop_workers(executor)
                    raise STOPPED
                for future in done:
                    future.result()
                if done:
                    report(count_done(self.trials, drawn))


def count_done(trials: Trials, drawn: DrawnRuns) -> int:
    """Counts the runs that have ended."""
    return sum(trials.is_done(number) for number in range(len(drawn.points)))


@contextmanager
def _executor(
    workers: int, context: multiprocessing.context.SpawnContext, terms: tuple[RecipeSource, Path, Path, Constants, int]
) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with the block: at once, if it raises."""
    executor = ProcessPoolExecutor(workers, context, _start_worker, (*terms, os.getpid()))
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
        raise
    executor.shutdown()


def _stop_workers(executor: ProcessPoolExecutor, patience: float = 60.0) -> None:
    """Asks every process to stop after the step in hand, and waits for that."""
    executor.shutdown(wait=False, cancel_futures=True)
    processes = multiprocessing.active_children()
    for process in processes:
        if process.pid is not None:
            os.kill(process.pid, signal.SIGINT)
    until = time.monotonic() + patience
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))


_worker: Trials | None = None


def _start_worker(
    source: RecipeSource, place: Path, root: Path, constants: Constants, threads: int, leader: int
) -> None:
    """Prepares a new process. Signals of the terminal reach the process that leads, which passes them on."""
    global _worker
    ignore_all_warnings()
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if hasattr(os, "setsid"):
        os.setsid()
    threading.Thread(target=_end_with, args=(leader,), daemon=True).start()
    _worker = Trials(source, place, root).at(None, constants)


def _end_with(leader: int) -> None:
    """Ends where the process that leads is gone: its result would not be recorded."""
    while os.getppid() == leader:
        time.sleep(0.5)
    os._exit(1)


def _make(number: int, point: Point) -> None:
    if _worker is None:
        raise InternalFault("a process was asked for a run before it was ready")
    try:
        _worker.make(number, point)
    except KeyboardInterrupt:
        raise Interrupted("stopped at once") from None
