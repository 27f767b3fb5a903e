"""`private/teachers/`: each teacher's votes in a file of its own, so that a resumed run trains none twice."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe import durable
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pate.aggregators import Counts
from dprecipe.mechanisms.pate.train.shards import vote_type


@final
class VoteStore:
    """`<teacher>.npy`: the class that it votes for on each of Q queries."""

    def __init__(self, folder: Path, queries: int, classes: int) -> None:
        self.folder = folder
        self._queries = queries
        self._classes = classes
        self._dtype = vote_type(classes)
        whole = io.BytesIO()
        np.save(whole, np.zeros(queries, self._dtype), allow_pickle=False)
        self._header = whole.getvalue()[: whole.tell() - queries * self._dtype.itemsize]

    def missing(self, teachers: Iterable[int]) -> list[int]:
        """Returns the teachers whose votes are not there."""
        names = {entry.name for entry in os.scandir(self.folder)} if self.folder.exists() else set()
        return [teacher for teacher in teachers if f"{teacher}.npy" not in names or self._read(teacher) is None]

    def put(self, teacher: int, votes_Q: NDArray[Any]) -> None:
        """Keep a teacher's votes, whole or not at all.

        Raises:
            RunFailed: the disk refuses.
        """
        target = self.folder / f"{teacher}.npy"
        try:
            self.folder.mkdir(mode=durable.FOLDER_MODE, exist_ok=True)
            with durable.replacing_file(target) as file:
                np.save(file, votes_Q.astype(self._dtype), allow_pickle=False)
        except OSError as error:
            raise RunFailed(
                f"{target}: can't keep a teacher's votes: {error.strerror}",
                "make room on the disk, then continue with --resume",
            ) from None

    def counts(self, teachers: int) -> Counts:
        """Counts the votes for each class: (Q, M). All teachers' votes have to be there."""
        counts_QM = np.zeros((self._queries, self._classes), np.int32)
        queries = np.arange(self._queries)
        for teacher in range(teachers):
            counts_QM[queries, self._read_kept(teacher)] += 1
        return counts_QM

    def votes(self, teachers: Sequence[int]) -> NDArray[Any]:
        """What each of them votes: (T, Q). All of them have to be there.

        Raises:
            RunFailed: the votes of one are gone.
        """
        votes_TQ = np.zeros((len(teachers), self._queries), self._dtype)
        for row, teacher in enumerate(teachers):
            votes_TQ[row] = self._read_kept(teacher)
        return votes_TQ

    def _read_kept(self, teacher: int) -> NDArray[Any]:
        votes_Q = self._read(teacher)
        if votes_Q is None:
            raise RunFailed(f"{self.folder}: the votes of teacher {teacher} are gone", "continue with --resume")
        return votes_Q

    def _read(self, teacher: int) -> NDArray[Any] | None:
        """The votes; None where they are not there or are damaged."""
        # The one content that `put` writes: a header that says otherwise is not followed.
        start, size = self._header, self._queries * self._dtype.itemsize
        try:
            with open(durable.open_regular(self.folder / f"{teacher}.npy", os.O_RDONLY), "rb") as file:
                content = file.read(len(start) + size + 1)
        except OSError:
            return None
        if not content.startswith(start) or len(content) != len(start) + size:
            return None
        votes_Q: NDArray[Any] = np.frombuffer(content, self._dtype, self._queries, len(start))
        return votes_Q if bool((votes_Q < self._classes).all()) else None


def save_votes(store: VoteStore, teachers: Sequence[int], votes_TQ: NDArray[Any]) -> None:
    """Keep the votes of several teachers."""
    for teacher, votes_Q in zip(teachers, votes_TQ, strict=True):
        store.put(teacher, votes_Q)
