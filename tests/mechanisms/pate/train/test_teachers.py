"""The ensemble: each teacher trained once, in this process or another; what is there is not trained again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dprecipe.faults import RunFailed
from dprecipe.language.training import Adam
from dprecipe.mechanisms.pate.schema import TeacherTraining
from dprecipe.mechanisms.pate.train import pool, teachers
from dprecipe.mechanisms.pate.train.learn import DealtParts, Lesson
from dprecipe.mechanisms.pate.train.pool import Job, Pool
from dprecipe.mechanisms.pate.train.shards import VoteStore

CPU = torch.device("cpu")
TEACHERS, QUERIES = 9, 20


class Class:
    """A small ensemble whose teachers learn one at a time."""

    def __init__(self, folder: Path, steps: int = 5) -> None:
        generator = np.random.default_rng(0)
        self.features = generator.random((90, 1, 16, 16), dtype=np.float32)
        self.labels = generator.integers(3, size=90)
        self.queries = generator.random((QUERIES, 1, 16, 16), dtype=np.float32)
        self.parts = DealtParts.of(np.arange(90) % TEACHERS, TEACHERS)
        self.store = VoteStore(folder / "teachers", QUERIES, 3)
        training = TeacherTraining(steps=steps, batch_size=8, optimizer=Adam(kind="adam", lr=0.01))
        self.lesson = Lesson(
            model={"kind": "cnn", "preset": "lenet"},
            training=training,
            shape=(1, 16, 16),
            classes=3,
            preprocess=(),
            seed=0,
            steps=steps,
            steps_per_epoch=2,
            physical_batch=64,
        )

    def take(self, numbers: Any) -> Any:
        return self.features[numbers], self.labels[numbers]

    def train(self, stop: Any = lambda: False) -> Any:
        args = (self.lesson, self.parts, self.take, self.queries, self.store, CPU, stop)
        return self.store.counts(TEACHERS) if teachers.train_teachers(*args) else None


@pytest.fixture
def planned(tmp_path: Path) -> Class:
    return Class(tmp_path)


def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The teachers that are trained in this process from here on."""
    seen: list[int] = []
    real = teachers.collect_votes
    monkeypatch.setattr(
        teachers, "collect_votes", lambda task, group, *rest: (seen.extend(group), real(task, group, *rest))[1]
    )
    return seen


def test_every_teacher_votes_once_on_every_query(planned: Class, capsys: pytest.CaptureFixture[str]) -> None:
    counts = planned.train()
    assert counts.shape == (QUERIES, 3)
    assert (counts.sum(axis=1) == TEACHERS).all()
    stored = [np.load(planned.store.folder / f"{i}.npy") for i in range(TEACHERS)]
    assert all(one.dtype == np.uint16 and one.shape == (QUERIES,) for one in stored)
    assert counts[:, 1].tolist() == [sum(one[q] == 1 for one in stored) for q in range(QUERIES)]
    assert "teacher 9 of 9" in capsys.readouterr().err


def test_teachers_that_have_voted_are_not_trained_again(planned: Class, monkeypatch: pytest.MonkeyPatch) -> None:
    before = planned.train()
    (planned.store.folder / "2.npy").unlink()
    (planned.store.folder / "5.npy").write_bytes(b"torn")
    np.save(planned.store.folder / "6.npy", np.zeros(QUERIES - 1, np.uint16))
    np.save(planned.store.folder / "7.npy", np.full(QUERIES, 3, np.uint16))
    with (planned.store.folder / "0.npy").open("wb") as archive:
        np.savez(archive, np.zeros(QUERIES, np.uint16))
    header = b"{'descr': '<u2', 'fortran_order': False, 'shape': (100000000000000,)}\n"
    (planned.store.folder / "1.npy").write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
    seen = trained(monkeypatch)
    assert np.array_equal(planned.train(), before)
    assert seen == [0, 1, 2, 5, 6, 7]


def test_a_stop_keeps_the_votes_that_are_there(planned: Class, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = iter([False, False, False, True])
    assert planned.train(lambda: next(stops)) is None
    assert planned.store.missing(range(TEACHERS)) == [3, 4, 5, 6, 7, 8]
    seen = trained(monkeypatch)
    assert planned.train() is not None
    assert seen == [3, 4, 5, 6, 7, 8]


@pytest.mark.slow
def test_processes_of_their_own_make_the_same_teachers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Class(tmp_path / "here"), Class(tmp_path / "there")
    for planned in (here, there):
        planned.store.folder.parent.mkdir()
    expected = here.train()
    monkeypatch.setattr(teachers, "MAX_REMAINING_SECONDS", -1.0)
    monkeypatch.setattr(teachers, "count_cpus", lambda: 2)
    seen = trained(monkeypatch)
    leftover = there.store.folder / ".work"
    leftover.mkdir(parents=True)
    (leftover / "features.npy").write_bytes(b"of a run that was killed")
    assert np.array_equal(there.train(), expected)
    assert seen == [0, 1]  # the first two show how long the others will take
    for i in range(TEACHERS):
        assert (there.store.folder / f"{i}.npy").read_bytes() == (here.store.folder / f"{i}.npy").read_bytes()
    assert {entry.name for entry in there.store.folder.iterdir()} == {f"{i}.npy" for i in range(TEACHERS)}


def test_a_process_that_fails_says_why(planned: Class, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teachers, "MAX_REMAINING_SECONDS", -1.0)
    monkeypatch.setattr(teachers, "count_cpus", lambda: 2)
    monkeypatch.setattr(pool, "COMMAND", "import sys; sys.exit('no such thing')")
    with pytest.raises(RunFailed, match="no such thing"):
        planned.train()
    assert planned.store.missing(range(TEACHERS)) == list(range(2, TEACHERS))
    assert not (planned.store.folder / ".work").exists()


def test_a_process_that_ended_before_it_was_told_anything_is_no_other_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "COMMAND", "import sys; sys.stdin.close(); sys.exit('no such thing')")
    with Pool(2, tmp_path, tmp_path) as workers:
        for process in workers._processes:
            process.wait()
        with pytest.raises(RunFailed, match="no such thing"):
            list(workers.each([[0], [1]], lambda: False))


def endless(tmp_path: Path) -> Class:
    planned = Class(tmp_path, steps=10**9)
    planned.store.folder.mkdir()
    Job.write(tmp_path / "job", planned.lesson, planned.parts, planned.take, planned.queries)
    return planned


def test_a_stop_ends_processes_in_the_middle_of_a_teacher(tmp_path: Path) -> None:
    planned = endless(tmp_path)
    with Pool(2, tmp_path / "job", planned.store.folder) as workers:
        processes = list(workers._processes)
        asked = 0

        def stop() -> bool:
            nonlocal asked
            asked += 1
            return asked > 3

        assert list(workers.each([[0], [1], [2]], stop)) == []
    assert all(process.returncode is not None for process in processes)


SCRIPT = """
import sys, time
from pathlib import Path
from dprecipe.mechanisms.pate.train.pool import Pool
with Pool(2, Path(sys.argv[1]), Path(sys.argv[2])) as workers:
    print(*(process.pid for process in workers._processes), flush=True)
    list(workers.each([[0], [1], [2]], lambda: False))
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    planned = endless(tmp_path)
    # A script as a user writes it, without a guard.
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "job"), str(planned.store.folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(pool._ROOT)},
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.send_signal(signal.SIGKILL)
    for _ in waiting(60):
        if not any(map(alive, pids)):
            return
    pytest.fail("workers outlived their parent")


def waiting(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.1)


def test_cpus_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= pool.count_cpus() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    for limit, expected in (("max 100000", 64), ("200000 100000", 2), ("50000 100000", 1)):
        monkeypatch.setattr(Path, "read_text", lambda self, encoding="", limit=limit: limit)
        assert pool.count_cpus() == expected


def test_many_classes_take_wider_numbers(tmp_path: Path) -> None:
    store = VoteStore(tmp_path / "teachers", 2, 70_000)
    store.put(0, np.array([69_999, 5]))
    assert store.missing(range(1)) == []
    assert np.flatnonzero(store.counts(1)[0]).tolist() == [69_999]
