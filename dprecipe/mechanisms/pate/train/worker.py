"""A process that trains teachers: `python -c "from dprecipe.mechanisms.pate.train.worker import main; main()"`.

It reads lines of JSON: a job, then lists of teachers. Once the teachers of a list are trained, it writes the list back.
It ends when its input ends, even in the middle of a teacher, so it never outlives the process that started it. Torch is
imported after the first line, and runs on one thread.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from dprecipe.durable import FILE_MODE, FOLDER_MODE
from dprecipe.libraries import importing_libraries

if TYPE_CHECKING:
    from dprecipe.mechanisms.pate.train.learn import DealtParts, Floats, Lesson, Take

_PREPARED = 4096
"""Number of records that are written to disk at a time."""


@final
@dataclass(frozen=True, slots=True)
class Job:
    """A folder with the arrays that workers map into memory, and the lesson."""

    folder: Path

    @staticmethod
    def write(folder: Path, lesson: Lesson, parts: DealtParts, take: Take, queries: Floats) -> Job:
        """Writes to disk everything that a worker needs. Raises `OSError`."""
        folder.mkdir(mode=FOLDER_MODE, parents=True)
        count = len(parts.order)
        first, _ = take(np.arange(min(1, count)))
        features = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (count, *first.shape[1:]))
        labels = np.empty(count, np.int64)
        for start in range(0, count, _PREPARED):
            part = slice(start, start + _PREPARED)
            features[part], labels[part] = take(np.arange(count)[part])
        features.flush()
        for name, array in (("labels", labels), ("order", parts.order), ("starts", parts.starts), ("queries", queries)):
            np.save(folder / f"{name}.npy", array)
        (folder / "lesson.json").write_text(lesson.model_dump_json(by_alias=True), encoding="utf-8")
        for file in folder.iterdir():
            file.chmod(FILE_MODE)
        return Job(folder)

    def run(self, store: Path, teachers: Sequence[int]) -> None:
        """Trains these teachers and keeps their votes in the folder `store`."""
        with importing_libraries():
            import torch

            from dprecipe.mechanisms.pate.train.learn import DealtParts, Lesson, collect_votes
            from dprecipe.mechanisms.pate.train.vote_store import VoteStore, save_votes

        lesson = Lesson.model_validate_json((self.folder / "lesson.json").read_bytes())
        features, labels, queries = (self._array(name) for name in ("features", "labels", "queries"))
        parts = DealtParts(self._array("order"), self._array("starts"))
        voted = collect_votes(
            lesson,
            teachers,
            parts,
            lambda numbers: (np.array(features[numbers]), np.array(labels[numbers])),
            queries,
            torch.device("cpu"),
        )
        save_votes(VoteStore(store, len(queries), lesson.classes), teachers, voted)

    def _array(self, name: str) -> Any:
        return np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)


def main() -> None:
    """Runs the worker: see the module."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    answers, sys.stdout = sys.stdout, sys.stderr  # keeps the output of libraries out of the answers
    job = json.loads(lines.get())
    with importing_libraries():
        import torch

    torch.set_num_threads(1)
    while True:
        teachers = json.loads(lines.get())
        Job(Path(job["folder"])).run(Path(job["store"]), teachers)
        answers.write(json.dumps(teachers) + "\n")
        answers.flush()


def _read(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)
