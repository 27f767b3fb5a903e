"""All runs of a tuned run on a cluster: one run, one task. The ledger stays here.

Every run is charged before its task starts, since the one event of the tuned run is reserved before anything is drawn.
A run that is lost, with its machine or by a fault of its own, is not made again: it has ended without a model and
comes last. That is sound whatever made the machine fail, even the run's own noise: the failure is then a result of the
run like any other. To make it again would choose, among several results, one that made no machine fail, and these are
not counted.
Those that were in hand when the process that leads was stopped are made again: it was stopped from outside, all of them
at once, and for nothing that any of them showed.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import final

from dprecipe.contract.plan import Plan
from dprecipe.durable import FOLDER_MODE
from dprecipe.faults import UsageFault
from dprecipe.release.untrusted import ContentError
from dprecipe.screen import is_watched, write_note
from dprecipe.training.processes.cluster import LOCAL, Cluster, Task, open_cluster
from dprecipe.training.processes.workers import STOPPED
from dprecipe.training.program.gather import Gathered
from dprecipe.training.run.signals import stopping_on_signals
from dprecipe.training.run.trial_result import locate_result
from dprecipe.training.tuning.draws import DrawnRuns
from dprecipe.training.tuning.order import RunOrder, RunTerms, check_machine, commit_to_inputs, make_parcel
from dprecipe.training.tuning.parcel import keep_parcel, unpack
from dprecipe.training.tuning.pool import count_done
from dprecipe.training.tuning.trials import Constants, Trials

POLL = 0.2
LATEST = 600.0
"""Seconds in which a machine says whether it could make a run."""


@final
class RayPool:
    """Makes the runs on a cluster, up to `limit` at once."""

    def __init__(self, trials: Trials, cluster: Cluster, terms: RunTerms, limit: int | None) -> None:
        self.trials = trials
        self._cluster = cluster
        self._terms = terms
        self._limit = limit

    def start_from(self, constants: Constants) -> None:
        """Makes all runs start from these."""
        self._terms = replace(self._terms, constants=constants)
        self.trials = self.trials.at(None, constants)

    def check_machines(self) -> None:
        """Checks that every machine could make a run: the same version, the same records. Nothing is spent.

        Raises:
            UsageFault: one could not.
        """
        token = secrets.token_hex(16)
        for node in self._cluster.nodes:
            task = self._cluster.submit(check_machine, self._terms, token, node=node)
            answer = self._cluster.fetch(task) if self._cluster.wait([task], LATEST) else None
            try:
                fault = unpack(answer, token).fault
            except ContentError:
                raise UsageFault(
                    "nothing was spent: a machine of the cluster can't make runs",
                    "install dprecipe[train] in the same version on every machine, and see the logs of the cluster",
                ) from None
            if fault is not None:
                raise UsageFault(f"nothing was spent: {fault.message}", fault.remedy)

    def make_all(self, drawn: DrawnRuns, report: Callable[[int], None] = lambda done: None) -> None:
        """Makes all runs that have not ended; `report` gets the number that have.

        Raises:
            Interrupted: the user stopped it.
            DataFault, UsageFault, RunFailed: as a run of its own, before it began. Losses end nothing early, however
                many there are: it would tell of the number of runs.
        """
        if self._terms.scratch is not None:  # of an attempt that was killed
            shutil.rmtree(self._terms.scratch, ignore_errors=True)
            self._terms.scratch.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        left = [number for number in range(len(drawn.points)) if not self.trials.is_done(number)][::-1]
        stopped = threading.Event()
        waiting: dict[Task, RunOrder] = {}
        with stopping_on_signals(stopped.set, "moment"):
            try:
                while left or waiting:
                    while left and (self._limit is None or len(waiting) < self._limit):
                        order = RunOrder(self._terms, left[-1], drawn.points[left.pop()], secrets.token_hex(16))
                        waiting[self._cluster.submit(make_parcel, order)] = order
                    done = self._cluster.wait(list(waiting), POLL)
                    if stopped.is_set():
                        raise STOPPED
                    for task in done:
                        self._receive(waiting.pop(task), self._cluster.fetch(task))
                    if done:
                        report(count_done(self.trials, drawn))
            finally:
                self._cluster.cancel(list(waiting))

    def _receive(self, order: RunOrder, answer: object | None) -> None:
        """Keeps what came back of a run, or records that it was lost.

        Raises:
            DataFault, UsageFault, RunFailed: the worker's own, before its run began.
        """
        kept = locate_result(self.trials.folder(order.number))
        try:
            parcel = unpack(answer, order.token, self.trials.pays_for_score)
            if parcel.outcome == "lost":
                self._lose(order.number, "" if parcel.fault is None else parcel.fault.message)
            elif parcel.fault is not None:
                raise parcel.fault
            elif parcel.outcome == "refused":
                self.trials.refuse(order.number)
            else:
                keep_parcel(parcel, kept)
        except ContentError as error:
            self._lose(order.number, "its machine is gone" if answer is None else str(error))

    def _lose(self, number: int, reason: str) -> None:
        if is_watched():  # in a log, it would tell of the number of runs
            write_note(f"a run was lost: {reason}")
        self.trials.lose(number, reason)


@contextmanager
def open_ray_pool(
    plan: Plan, place: Path, root: Path, gathered: Gathered, address: str, limit: int | None
) -> Iterator[RayPool]:
    """Yields a pool whose machines are ready. `limit`: runs at once; None: as many as the cluster can hold.

    Raises:
        UsageFault: no cluster, or one that can't make runs; nothing was spent.
    """
    source = replace(plan.source, file=str(Path(plan.source.file).absolute()))
    gpus = 1 if plan.runtime.device == "cuda" else 0
    with open_cluster(address, limit, gpus) as cluster:
        key = secrets.token_bytes(32)
        scratch = place / "workers" if address == LOCAL else None
        terms = RunTerms(source, root, key, commit_to_inputs(plan, root, key, gathered), scratch)
        pool = RayPool(Trials(plan.source, place, root), cluster, terms, limit)
        pool.check_machines()
        yield pool
