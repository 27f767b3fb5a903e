"""Teachers on a cluster: the votes of one machine, whatever is lost on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.language.training import Adam
from dprecipe.mechanisms.pate.schema import TeacherTraining
from dprecipe.mechanisms.pate.train import cluster_teachers, learn
from dprecipe.mechanisms.pate.train.cluster_teachers import (
    MAX_LOSSES,
    TeacherMachines,
    TeacherOrder,
    check_machines,
    train_on_cluster,
)
from dprecipe.mechanisms.pate.train.learn import DealtParts, Lesson, collect_votes, list_groups
from dprecipe.mechanisms.pate.train.machine import describe_machine
from dprecipe.mechanisms.pate.train.shards import VoteStore
from dprecipe.privacy.ledger import read

CPU = torch.device("cpu")
TEACHERS = 20
Answer = Callable[[int, Callable[[], bytes]], object]


class Machines:
    """A cluster without machines: a task is worked out when it is asked for. `answer` may lose or spoil it."""

    cpus = 2

    def __init__(self, answer: Answer = lambda number, work: work(), nodes: Sequence[str] = ("one", "two")) -> None:
        self.answer, self.nodes = answer, nodes
        self.tasks: list[Callable[[], bytes]] = []
        self.orders: list[TeacherOrder] = []
        self.most, self.cancelled = 0, 0
        self._waiting: set[int] = set()

    def share(self, value: object) -> object:
        return value

    def submit(self, function: Callable[..., bytes], *arguments: Any, node: str | None = None) -> int:
        self.tasks.append(lambda: function(*arguments))
        self.orders += [each for each in arguments if isinstance(each, TeacherOrder)]
        self._waiting.add(len(self.tasks) - 1)
        self.most = max(self.most, len(self._waiting))
        return len(self.tasks) - 1

    def wait(self, tasks: Sequence[int], seconds: float) -> list[int]:
        return list(tasks[:1])

    def fetch(self, task: int) -> object:
        self._waiting.remove(task)
        return self.answer(task, self.tasks[task])

    def cancel(self, tasks: Sequence[int]) -> None:
        self.cancelled += len(tasks)


class Class:
    """An ensemble, some of whose parts are empty."""

    def __init__(self, folder: Path, model: dict[str, Any], training: bool) -> None:
        generator = np.random.default_rng(0)
        self.features = generator.random((120, 1, 4, 4), dtype=np.float32)
        self.labels = generator.integers(3, size=120)
        self.queries = generator.random((30, 1, 4, 4), dtype=np.float32)
        dealt = np.arange(120) % TEACHERS
        self.parts = DealtParts.of(np.where(dealt == 7, 0, dealt), TEACHERS)
        self.store = VoteStore(folder / "teachers", 30, 3)
        spec = TeacherTraining(steps=6, batch_size=8, optimizer=Adam(kind="adam", lr=0.01)) if training else None
        self.lesson = Lesson(
            model=model, training=spec, shape=(1, 4, 4), classes=3, preprocess=(), seed=0, steps=6,
            steps_per_epoch=2, physical_batch=64,
        )  # fmt: skip

    def take(self, numbers: Any) -> Any:
        return self.features[numbers], self.labels[numbers]

    def here(self) -> Any:
        return collect_votes(self.lesson, range(TEACHERS), self.parts, self.take, self.queries, CPU)

    def there(self, machines: Machines, stop: Callable[[], bool] = lambda: False) -> list[int]:
        groups = list_groups(self.store.missing(range(TEACHERS)), self.lesson.group(CPU))
        checked = TeacherMachines(machines, describe_machine(CPU))  # type: ignore[arg-type]
        given = (checked, self.lesson, groups, self.parts, self.take, self.queries, self.store, CPU, stop)
        return sorted(teacher for group in train_on_cluster(*given) for teacher in group)


@pytest.fixture
def fitted(tmp_path: Path) -> Class:
    return Class(tmp_path, {"kind": "random_forest", "trees": 2}, training=False)


@pytest.mark.parametrize("kind", ["fitted", "together", "alone"])
def test_a_cluster_votes_as_one_machine(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "GROUP_SIZE", 8)
    model = {"kind": "mlp", "hidden": (7,)} if kind != "fitted" else {"kind": "logistic_regression"}
    if kind == "alone":
        monkeypatch.setattr(learn, "SMALL", 0)
    planned, machines = Class(tmp_path, model, training=kind != "fitted"), Machines()
    assert planned.there(machines) == list(range(TEACHERS))
    assert np.array_equal(planned.store.votes(range(TEACHERS)), planned.here())
    assert len(machines.orders) == {"fitted": 2, "together": 3, "alone": 20}[kind]
    assert machines.most <= 2 * machines.cpus
    sent = [record for order in machines.orders for record in order.features.reshape(-1, 16).tolist()]
    assert sorted(sent) == sorted(planned.features.reshape(120, -1).tolist())  # each record once


def test_a_lost_task_is_given_out_again_and_votes_the_same(fitted: Class) -> None:
    spoiled: dict[int, object] = {0: None, 1: b"short", 2: b"x" * 200}
    machines = Machines(lambda number, work: spoiled.get(number) if number in spoiled else work())
    assert fitted.there(machines) == list(range(TEACHERS))
    assert np.array_equal(fitted.store.votes(range(TEACHERS)), fitted.here())
    assert len(machines.orders) == 2 + 3
    assert len({order.token for order in machines.orders}) == 5


def test_an_answer_of_another_task_is_none(fitted: Class) -> None:
    machines = Machines()
    machines.answer = lambda number, work: machines.tasks[1 - number]() if number < 2 else work()
    fitted.there(machines)
    assert np.array_equal(fitted.store.votes(range(TEACHERS)), fitted.here())
    assert len(machines.orders) == 4


def test_who_is_lost_again_and_again_ends_the_run_and_keeps_the_other_votes(fitted: Class) -> None:
    machines = Machines(lambda number, work: work() if number == 0 else None)
    with pytest.raises(RunFailed, match="lost again and again") as caught:
        fitted.there(machines)
    assert "no query was put" in caught.value.remedy
    assert len(machines.orders) == 2 + MAX_LOSSES
    assert fitted.store.missing(range(TEACHERS)) == list(range(16, TEACHERS))
    again = Machines()
    assert fitted.there(again) == list(range(16, TEACHERS))
    assert np.array_equal(fitted.store.votes(range(TEACHERS)), fitted.here())


def test_a_fault_of_a_machine_says_why(fitted: Class, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*rest: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(cluster_teachers, "collect_votes", fail)
    machines = Machines()
    with pytest.raises(RunFailed, match="can't train teachers: MemoryError: no room"):
        fitted.there(machines)
    assert machines.cancelled == 1
    assert fitted.store.missing(range(TEACHERS)) == list(range(TEACHERS))


def test_a_machine_of_another_kind_that_joins_later_trains_nobody(
    fitted: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = describe_machine(CPU)
    monkeypatch.setattr(cluster_teachers, "describe_machine", lambda device: "a processor")
    checked = Machines(lambda number, work: work())
    with pytest.raises(RunFailed, match=r"its kind differs from that of the others: .*a processor"):
        fitted.there(checked)
    assert kind != "a processor"


def test_a_stop_ends_what_is_in_hand(fitted: Class) -> None:
    asked: list[int] = []
    machines = Machines()
    assert fitted.there(machines, lambda: bool(asked.append(0)) or len(asked) > 1) == list(range(16))
    assert machines.cancelled == 1


def test_machines_are_compared_before_anything_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_machines(Machines(), CPU).kind == describe_machine(CPU)  # type: ignore[arg-type]
    for answer, nodes, words in (
        (lambda number, work: None, ("one",), "can't train teachers"),
        (lambda number, work: b"pickled" * 20, ("one",), "can't train teachers"),
        (lambda number, work: work(), (), "none takes tasks"),
    ):
        with pytest.raises(UsageFault, match=f"nothing was spent: .*{words}"):
            check_machines(Machines(answer, nodes), CPU)  # type: ignore[arg-type]
    kinds = iter(["a processor", "another"])
    with monkeypatch.context() as patch:
        patch.setattr(cluster_teachers, "describe_machine", lambda device: next(kinds))
        with pytest.raises(UsageFault, match=r"several kinds.*a processor; .*another"):
            check_machines(Machines(), CPU)  # type: ignore[arg-type]
    machines = Machines()
    machines.answer = lambda number, work: _as_version("9.9", work, monkeypatch)
    with pytest.raises(UsageFault, match=r"another version than .*: dprecipe 9\.9"):
        check_machines(machines, CPU)  # type: ignore[arg-type]


def _as_version(version: str, work: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch) -> bytes:
    with monkeypatch.context() as patch:
        patch.setattr(cluster_teachers, "__version__", version)
        return work()


LONG = (
    "mechanism.teachers.count=6",
    "mechanism.teachers.model={kind: mlp, hidden: [1000, 200]}",  # too large to learn together
    "mechanism.teachers.training.steps=400",
    "mechanism.queries.max=20",
    "runtime.insecure={seed: 3}",
)


def find_workers(leader: int) -> list[int]:
    """Processes of Ray that train teachers for this one."""
    parents, training = {}, []
    for entry in Path("/proc").iterdir():
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if (entry / "cmdline").read_bytes().startswith(b"ray::answer_votes"):
                training.append(int(entry.name))
        except (ValueError, OSError, IndexError):
            continue

    def leads_to(process: int) -> bool:
        while process > 1 and process != leader:
            process = parents.get(process, 0)
        return process == leader

    return [process for process in training if leads_to(process)]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
def test_a_real_cluster_that_loses_a_worker_votes_as_one_machine(digits: Callable[..., Plan], tmp_path: Path) -> None:
    """As a user runs it. The teachers of the worker that is killed are trained again, to the same votes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'dprecipe[ray]'")
    plan, out = digits(*LONG), tmp_path / "cluster"
    words = [sys.executable, "-m", "dprecipe", "run", str(tmp_path / "digits.yaml"), "--out", str(out), "--ray"]
    words += [word for each in LONG for word in ("--set", each)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 600
        while not (workers := find_workers(process.pid)):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until, "no teacher was trained"
            time.sleep(0.02)
        os.kill(workers[0], signal.SIGKILL)
        printed = process.communicate(timeout=600)[1]
    assert process.returncode == 0, printed
    alone = run(plan, tmp_path / "alone")
    stacks = [
        np.stack([np.load(folder / "private" / "teachers" / f"{teacher}.npy") for teacher in range(6)])
        for folder in (out, alone.folder)
    ]
    assert np.array_equal(*stacks)
    ledgers = [read(folder / "private" / "ledger.jsonl") for folder in (out, alone.folder)]
    assert ledgers[0].charges == ledgers[1].charges
    assert ledgers[0].attempts == 1
