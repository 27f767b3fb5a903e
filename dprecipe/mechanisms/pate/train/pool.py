"""Processes that train teachers in parallel, one thread each: the parent's half, `Pool`, and the child's, `main`.

They are plain subprocesses: `multiprocessing` would run again a user's script that has no `__main__` guard.
A child reads lines of JSON: a job, then lists of teachers. Once the teachers of a list are trained, it writes the list
back. It ends when its input ends, even in the middle of a teacher, so it never outlives the process that started it.
Torch is imported after the first line.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, final

import numpy as np

from dprecipe.durable import FILE_MODE, FOLDER_MODE
from dprecipe.faults import RunFailed
from dprecipe.libraries import importing_libraries

if TYPE_CHECKING:
    from dprecipe.mechanisms.pate.train.learn import DealtParts, Floats, Lesson, Take

COMMAND = "from dprecipe.mechanisms.pate.train.pool import main; main()"
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
ALLOCATOR = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 28))
"""Settings by which glibc keeps memory from step to step.

Otherwise it returns each large gradient to the system, and fresh pages cost a tenth of the time.
"""
_ROOT = Path(__file__).resolve().parents[3]
_POLL_SECONDS = 0.2
_KILL = 9


def count_cpus() -> int:
    """Returns the number of CPUs that this process may use, by its affinity and its control group."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(allowed, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or no limit: "max"
        return allowed


@final
class Pool:
    """Workers on one job: a context manager that always ends them."""

    def __init__(self, workers: int, folder: Path, store: Path) -> None:
        """Prepares the pool; `folder` holds the job, `store` takes the votes."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __exit__)
        self._done: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[str]] = []
        self._job = json.dumps({"folder": str(folder.resolve()), "store": str(store.resolve())})
        self._workers = workers

    def __enter__(self) -> Pool:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        try:
            for number in range(self._workers):
                process = subprocess.Popen(
                    [sys.executable, "-W", "ignore", "-c", COMMAND],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    text=True,
                    env={**ALLOCATOR, **os.environ, **THREADS, "PYTHONPATH": path},
                )
                self._processes.append(process)
                threading.Thread(target=self._listen, args=(number, process.stdout), daemon=True).start()
                self._say(number, self._job)
        except OSError as error:
            self.__exit__(None, None, None)
            raise RunFailed(f"a process for teachers can't be started: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):  # a worker that ended by itself may have left input unread
                        stream.close()
        self._errors.close()

    def each(self, groups: Sequence[Sequence[int]], stop: Callable[[], bool]) -> Iterator[list[int]]:
        """Has every group of teachers trained; yields each when its votes are on disk, in order of completion.

        Ends at once when `stop` says so; the teachers in training are dropped.

        Raises:
            RunFailed: a worker failed.
        """
        waiting, busy = list(reversed(groups)), 0
        for number in range(self._workers):
            if waiting:
                self._say(number, json.dumps(list(waiting.pop())))
                busy += 1
        while busy and not stop():
            try:
                number, line = self._done.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if not line:
                raise RunFailed(
                    f"a process that trained teachers ended: {self._last_words(number)}", "continue with --resume"
                )
            busy -= 1
            if waiting:
                self._say(number, json.dumps(list(waiting.pop())))
                busy += 1
            yield json.loads(line)

    def _say(self, number: int, line: str) -> None:
        stream = self._processes[number].stdin
        try:
            if stream is not None:
                stream.write(line + "\n")
                stream.flush()
        except OSError:  # it ended, and its listener reports that
            return

    def _listen(self, number: int, stream: IO[str]) -> None:
        for line in stream:
            self._done.put((number, line))
        self._done.put((number, ""))

    def _last_words(self, number: int) -> str:
        code = self._processes[number].wait()
        if code < 0:
            return f"it was ended by signal {-code}" + (", perhaps for lack of memory" if -code == _KILL else "")
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it gave no reason (exit code {code})"


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
            from dprecipe.mechanisms.pate.train.shards import VoteStore, save_votes

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
