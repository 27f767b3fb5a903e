"""Training of one shard of the teachers before the run: as the run would train them, in a folder of their own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.train.program import Trained, prepare, teachers_of
from dprecipe.mechanisms.pate.train.shard_folder import ShardFolder
from dprecipe.mechanisms.pate.train.shards import TeacherShard, VoteStore
from dprecipe.training.program.file_digests import holding_still
from dprecipe.training.program.gather import gather_records
from dprecipe.training.run.runner import PythonInputs
from dprecipe.training.run.signals import stopping_on_signals


@dataclass(frozen=True, slots=True)
class TrainedShard:
    """A shard whose votes are complete."""

    file: Path
    teachers: range
    was_there: bool


def prepare_folder(plan: Plan, path: Path) -> ShardFolder:
    """Opens or makes the folder of all shards, with its key.

    Raises:
        UsageFault, RunFailed: see `ShardFolder`.
    """
    insecure = plan.runtime.insecure
    return ShardFolder(path, None if insecure is None else insecure.seed)


def train_shard(plan: Plan, shard: TeacherShard, path: Path, root: Path) -> TrainedShard:
    """Trains the teachers of a shard and keeps their votes in `path`; does not retrain those of an earlier process.

    Guarantees: on machines of one kind, the votes are those that the run itself would count; nothing is spent.

    Raises:
        UsageFault: the plan's teachers can't be trained before the run; or the folder belongs to another plan, version
            or kind of machine, or to other records.
        DataFault, PlanRefused, RunFailed: see `Runner.prepare`.
        Interrupted: stopped by the user; the next call continues.
    """
    teachers = shard.teachers(teachers_of(plan).count)
    with holding_still(plan.data.train, root):
        program = prepare(plan, root, PythonInputs(gathered=gather_records(plan, root)))
    ensemble = program.ensemble
    if not isinstance(ensemble, Trained):
        raise ValueError("the votes come from a file: there are no teachers to train")
    folder = prepare_folder(plan, path)
    terms = program.terms(plan, folder.key)
    folder.check_terms(terms)
    if folder.find(terms, shard):
        return TrainedShard(path / shard.file, teachers, was_there=True)
    stopped = threading.Event()

    def train(store: VoteStore) -> bool:
        return ensemble.train(folder.key, program.asked, store, program.device, stopped.is_set, teachers)

    with stopping_on_signals(stopped.set, "group of teachers"):
        file = folder.train(terms, shard, train)
    return TrainedShard(file, teachers, was_there=False)
