"""Tasks of one command, one after the other or several at once, each in a process of its own.

A process that is lost costs the task that it was doing, which is done again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from dprecipe.faults import Interrupted, RunFailed
from dprecipe.libraries import ignore_all_warnings
from dprecipe.training.run.signals import stopping_on_signals

MAX_LOSSES = 3
"""Largest number of times that processes may be lost before the command gives up."""
STOPPED = Interrupted("stopped")

Task = tuple[Any, ...]
"""Arguments of one task; they travel to another process."""


@final
@dataclass(frozen=True, slots=True)
class Workers:
    """The processes that do tasks, up to `jobs` at once; one job is done in the process that asks.

    `work` and `prepare` are functions of a module. `prepare` is called with `terms` once in each new process.
    """

    jobs: int
    work: Callable[..., None]
    prepare: Callable[..., None] = ignore_all_warnings
    terms: Task = ()

    def do_all(self, tasks: Sequence[Task], is_done: Callable[[Task], bool], report: Callable[[], None]) -> None:
        """Does all tasks that are not done; `report` is called after each.

        Raises:
            Interrupted: the user stopped it.
            RunFailed: processes were lost again and again; or whatever a task raises.
        """
        left = [task for task in tasks if not is_done(task)]
        losses = 0
        while left:
            try:
                if self.jobs == 1:
                    self._do_here(left, report)
                else:
                    self._do_in_processes(left, report)
                return
            except BrokenProcessPool:
                losses += 1
                if losses > MAX_LOSSES:
                    raise RunFailed(
                        "processes that make the runs were killed again and again",
                        "if memory was short, continue with --resume and fewer --jobs; nothing more is spent",
                    ) from None
            left = [task for task in left if not is_done(task)]

    def _do_here(self, left: Sequence[Task], report: Callable[[], None]) -> None:
        for task in left:
            self.work(*task)
            report()

    def _do_in_processes(self, left: Sequence[Task], report: Callable[[], None]) -> None:
        stopped = threading.Event()
        with stopping_on_signals(stopped.set), self._start(min(self.jobs, len(left))) as executor:
            waiting: set[Future[None]] = {executor.submit(_do, self.work, task) for task in left}
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                if stopped.is_set():
                    _stop_workers(executor)
                    raise STOPPED
                for future in done:
                    future.result()
                if done:
                    report()

    @contextmanager
    def _start(self, workers: int) -> Iterator[ProcessPoolExecutor]:
        """Starts processes that end with the block: at once, if it raises."""
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        context = multiprocessing.get_context("spawn")
        started = (self.prepare, self.terms, threads, os.getpid())
        executor = ProcessPoolExecutor(workers, context, _start_worker, started)
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


def _start_worker(prepare: Callable[..., None], terms: Task, threads: int, leader: int) -> None:
    """Prepares a new process. Signals of the terminal reach the process that leads, which passes them on."""
    ignore_all_warnings()
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if hasattr(os, "setsid"):
        os.setsid()
    threading.Thread(target=_end_with, args=(leader,), daemon=True).start()
    prepare(*terms)


def _end_with(leader: int) -> None:
    """Ends where the process that leads is gone: its result would not be recorded."""
    while os.getppid() == leader:
        time.sleep(0.5)
    os._exit(1)


_is_stopped = False
"""True in a process that was asked to stop: tasks that wait in its queue are not begun."""


def _do(work: Callable[..., None], task: Task) -> None:
    global _is_stopped
    if _is_stopped:
        raise STOPPED
    try:
        work(*task)
    except Interrupted:
        _is_stopped = True
        raise
    except KeyboardInterrupt:
        _is_stopped = True
        raise Interrupted("stopped at once") from None
