"""The ensemble: every teacher is trained on its part and asked once, and only its votes are kept.

The first few teachers show how long all will take; if that is long, separate processes train the rest. Or a cluster
trains them all.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from dprecipe import durable
from dprecipe.mechanisms.pate.train.cluster_teachers import TeacherMachines, train_on_cluster
from dprecipe.mechanisms.pate.train.learn import DealtParts, Floats, Lesson, Take, collect_votes, list_groups
from dprecipe.mechanisms.pate.train.pool import Job, Pool, count_cpus
from dprecipe.mechanisms.pate.train.shards import VoteStore, save_votes
from dprecipe.progress import Progress

MAX_REMAINING_SECONDS = 15.0
"""Seconds that the remaining teachers may take in this process: starting other processes takes a few."""


def train_teachers(
    lesson: Lesson,
    parts: DealtParts,
    take: Take,
    queries: Floats,
    store: VoteStore,
    device: torch.device,
    stop: Callable[[], bool] = lambda: False,
    teachers: Sequence[int] | None = None,
    machines: TeacherMachines | None = None,
) -> bool:
    """Trains these teachers (None: all) and keeps their votes on every query; returns false if `stop` came first.

    Teachers whose votes are in the store are not trained again. `machines`: the cluster that trains them; None: this
    machine does.

    Raises:
        RunFailed: the disk can't be written, or a process or a machine failed; the votes of the others are kept.
    """
    wanted = range(len(parts)) if teachers is None else teachers
    missing = store.missing(wanted)
    done = len(wanted) - len(missing)
    if not missing:
        return True
    groups = list_groups(missing, lesson.group(device))
    progress = Progress("teachers", "teacher", len(wanted), done)
    if machines is None:
        trained = _trained(lesson, groups, parts, take, queries, store, device, stop)
    else:
        trained = train_on_cluster(machines, lesson, groups, parts, take, queries, store, device, stop)
    with one_thread():
        for group in trained:
            done += len(group)
            progress.show(done)
    progress.end(done)
    return done == len(wanted)


def _trained(
    lesson: Lesson,
    groups: Sequence[Sequence[int]],
    parts: DealtParts,
    take: Take,
    queries: Floats,
    store: VoteStore,
    device: torch.device,
    stop: Callable[[], bool],
) -> Iterator[Sequence[int]]:
    """Trains the groups on this machine; yields each once its votes are in the store."""
    workers = 1 if device.type != "cpu" and lesson.training is not None else count_cpus()
    started = time.monotonic()
    for number, group in enumerate(groups):
        # The first group includes the warm-up, so the clock starts again at the second.
        left = (time.monotonic() - started) / max(1, number - 1) * (len(groups) - number)
        if number > 1 and workers > 1 and left > MAX_REMAINING_SECONDS:
            yield from _by_workers(lesson, groups[number:], parts, take, queries, store, workers, stop)
            return
        if stop():
            return
        if number == 1:
            started = time.monotonic()
        save_votes(store, group, collect_votes(lesson, group, parts, take, queries, device))
        yield group


def _by_workers(
    lesson: Lesson,
    groups: Sequence[Sequence[int]],
    parts: DealtParts,
    take: Take,
    queries: Floats,
    store: VoteStore,
    workers: int,
    stop: Callable[[], bool],
) -> Iterator[Sequence[int]]:
    with _work_folder(store.folder / ".work") as folder:
        with durable.writing(folder, "make room on the disk, then continue with --resume"):
            Job.write(folder, lesson, parts, take, queries)
        with Pool(min(workers, len(groups)), folder, store.folder) as pool:
            yield from pool.each(groups, stop)


@contextmanager
def _work_folder(path: Path) -> Iterator[Path]:
    """Removes the folder `path` before the block, in case a killed run left it, and after it."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to one thread inside the block: teachers are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
