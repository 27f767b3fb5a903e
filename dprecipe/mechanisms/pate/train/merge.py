"""Merge of the votes of all shards: each shard is there once, whole, and of this run's plan, records and version.

Teachers vote as they would have voted in the run: a vote is a function of the teacher's number, its part and the
`Lesson`. The terms of a shard pin these, the key of the partition and the rounding of the machine. So a merge spends
nothing and leaves the claims unchanged.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from dprecipe import __version__, durable
from dprecipe.contract.plan import Plan
from dprecipe.faults import UsageFault
from dprecipe.mechanisms.pate.train.learn import Floats, Lesson
from dprecipe.mechanisms.pate.train.machine import describe_machine
from dprecipe.mechanisms.pate.train.partition import keep_content, load_key
from dprecipe.mechanisms.pate.train.shard_folder import list_files, read_key
from dprecipe.mechanisms.pate.train.shards import (
    ShardTerms,
    TeacherShard,
    VoteStore,
    derive_key,
    read_terms,
    read_votes,
    save_votes,
)
from dprecipe.release.facts import commit_to_data
from dprecipe.training.publish.provenance import as_bytes

MAX_SHOWN = 5


def make_terms(
    plan: Plan,
    lesson: Lesson,
    teachers: int,
    records: Sequence[NDArray[Any] | bytes] | None,
    queries: Floats,
    device: torch.device,
    key: bytes,
) -> ShardTerms:
    """Returns the terms that determine these teachers' votes on this machine.

    `records` include the teacher of each record.

    Raises:
        UsageFault: `records` is None, because they come from a custom source, which has no digest.
    """
    if records is None:
        raise UsageFault("the training records are a source of their own kind, which has no digest", "name files")
    committed = derive_key(key, "records")
    insecure = "" if plan.runtime.insecure is None else f"insecure {plan.runtime.insecure.seed} "
    return ShardTerms(
        plan=plan.digest,
        version=__version__,
        lesson=hashlib.sha256(f"{insecure}{lesson.model_dump_json(by_alias=True)}".encode()).hexdigest(),
        records=commit_to_data(committed, *map(as_bytes, records)),
        queries=commit_to_data(committed, str(queries.shape).encode(), as_bytes(queries)),
        device=device.type,
        machine=describe_machine(device),
        teachers=teachers,
        asked=len(queries),
        classes=lesson.classes,
    )


def find_key(folders: Sequence[Path]) -> bytes:
    """Reads the key that all folders of shards share.

    Raises:
        UsageFault: a folder holds no shards, is named twice, or has another key.
    """
    keys: dict[Path, bytes] = {}
    for folder in folders:
        if folder.resolve() in keys:
            raise UsageFault(f"--teachers {folder}: named twice", "name each folder once")
        keys[folder.resolve()] = read_key(folder)
    first, *others = keys
    for other in others:
        if keys[other] != keys[first]:
            raise UsageFault(
                f"{other}: its records were dealt with another key than those of {first}",
                "make the folder once (dprecipe teachers --prepare), copy it to every machine, and train there again",
            )
    return keys[first]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ShardVotes:
    """The votes of all teachers, in files that were read and checked."""

    files: tuple[tuple[TeacherShard, Path], ...]
    terms: ShardTerms
    key: bytes

    @staticmethod
    def find(folders: Sequence[Path], terms: ShardTerms, key: bytes) -> ShardVotes:
        """Finds all shards in these folders and checks each file.

        `terms` are those of the run; only the kind of machine may differ.

        Raises:
            UsageFault: a shard is missing or there twice; or votes have another plan, version, or records.
            DataFault: a file is damaged.
        """
        files = [each for folder in folders for each in list_files(folder)]
        _check_whole(files, folders)
        # The first shard names the kind of machine: this machine trains no teachers.
        terms = replace(terms, machine=read_terms(files[0][1], files[0][0]).machine)
        for shard, file in files:
            read_votes(file, shard, terms, key)
        return ShardVotes(tuple(files), terms, key)

    def keep_key(self, path: Path) -> None:
        """Saves the key as the run's, so that the run deals its records as those of the teachers were dealt.

        Raises:
            UsageFault: the run has already dealt them with another key.
            RunFailed: the key can't be written.
        """
        with durable.writing(path, "make room on the disk"):
            keep_content(path, self.key)
        if load_key(path) != self.key:
            raise UsageFault(
                "this run has dealt its records with another key than the teachers of --teachers",
                "resume it with the folders that it was started with, or start again with another --out",
            )

    def keep_votes(self, store: VoteStore) -> None:
        """Puts in the store the votes of those teachers that it lacks.

        Raises:
            RunFailed: they can't be written.
            UsageFault, DataFault: a file has changed since it was read.
        """
        missing = set(store.missing(range(self.terms.teachers)))
        for shard, file in self.files if missing else ():
            votes_TQ = read_votes(file, shard, self.terms, self.key)
            teachers = shard.teachers(self.terms.teachers)
            rows = [row for row, teacher in enumerate(teachers) if teacher in missing]
            save_votes(store, [teachers[row] for row in rows], votes_TQ[np.array(rows, np.int64)])


def _check_whole(files: Sequence[tuple[TeacherShard, Path]], folders: Sequence[Path]) -> None:
    """Refuses folders in which a shard is missing or there twice.

    Raises:
        UsageFault: one is.
    """
    places: dict[TeacherShard, Path] = {}
    for shard, file in files:
        if shard in places:
            raise UsageFault(f"shard {shard} is there twice: {places[shard]} and {file}", "move one of them away")
        places[shard] = file
    if not places:
        raise UsageFault(
            f"{', '.join(map(str, folders))}: no shard is complete", "train them with `dprecipe teachers`, to the end"
        )
    counts = sorted({shard.count for shard in places})
    if len(counts) > 1:
        one, other = (next(file for shard, file in files if shard.count == count) for count in counts[:2])
        raise UsageFault(
            f"shards of {counts[0]} and of {counts[1]}: {one} and {other}",
            "keep in the folders only the shards of one such number",
        )
    missing = [number for number in range(1, counts[0] + 1) if TeacherShard(number, counts[0]) not in places]
    if missing:
        shown = ", ".join(map(str, missing[:MAX_SHOWN])) + (" …" if len(missing) > MAX_SHOWN else "")
        raise UsageFault(
            f"{len(missing)} of {counts[0]} shards are missing: {shown}",
            f"train them: dprecipe teachers RECIPE --shard {missing[0]}/{counts[0]} "
            f"--out {shlex.quote(str(folders[0]))}",
        )
