"""Runs on a cluster: losses, damaged answers, faults, stops; and the whole on a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import DataFault, Interrupted, UsageFault
from dprecipe.privacy.ledger import read
from dprecipe.release.verify import verify
from dprecipe.training.tuning.draws import DrawnRuns
from dprecipe.training.tuning.order import RunOrder, RunTerms
from dprecipe.training.tuning.parcel import pack_fault, pack_loss, pack_refusal
from dprecipe.training.tuning.ray_pool import RayPool
from dprecipe.training.tuning.trials import Trials
from dprecipe.training.tuning.winner import list_models

Tuned = Callable[..., Plan]
Answer = Callable[[RunOrder], object]


class Machines:
    """A cluster of no machines: what a task answers is worked out when it is asked for."""

    nodes = ("one", "two")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.orders: list[RunOrder] = []
        self.most = 0
        self.cancelled = 0
        self._waiting: set[int] = set()

    def submit(self, function: object, *arguments: Any, node: str | None = None) -> int:
        self.orders.append(arguments[0] if node is None else RunOrder(arguments[0], -1, {}, arguments[1]))
        self._waiting.add(len(self.orders) - 1)
        self.most = max(self.most, len(self._waiting))
        return len(self.orders) - 1

    def wait(self, tasks: Sequence[int], seconds: float) -> list[int]:
        return list(tasks[:1])

    def fetch(self, task: int) -> object:
        self._waiting.remove(task)
        return self.answer(self.orders[task])

    def cancel(self, tasks: Sequence[int]) -> None:
        self.cancelled += len(tasks)


@pytest.fixture
def pool(tuned: Tuned, tmp_path: Path) -> Callable[..., tuple[RayPool, Machines]]:
    source = tuned().source

    def make(answer: Answer, limit: int | None = None) -> tuple[RayPool, Machines]:
        machines = Machines(answer)
        trials = Trials(source, tmp_path / "trials", tmp_path)
        return RayPool(trials, machines, RunTerms(source, tmp_path, b"", {}, None), limit), machines  # type: ignore[arg-type]

    return make


def drawn(count: int) -> DrawnRuns:
    return DrawnRuns(({},) * count, tuple(range(count)))


def refuse(order: RunOrder) -> bytes:
    return pack_refusal(order.token)


Pools = Callable[..., tuple[RayPool, Machines]]


def test_each_run_is_one_task_and_no_more_are_made_at_once_than_allowed(pool: Pools) -> None:
    runs, machines = pool(refuse, 2)
    reports: list[int] = []
    runs.make_all(drawn(5), reports.append)
    assert [order.number for order in machines.orders] == [0, 1, 2, 3, 4]
    assert len({order.token for order in machines.orders}) == 5
    assert machines.most == 2
    assert reports == [1, 2, 3, 4, 5]
    runs.make_all(drawn(5))
    assert len(machines.orders) == 5


@pytest.mark.parametrize("answer", [None, b"damaged", pack_refusal("another"), "text", "fault of its own"])
def test_a_run_that_is_lost_comes_last_and_is_never_made_again(pool: Pools, answer: object, tmp_path: Path) -> None:
    def respond(order: RunOrder) -> object:
        if order.number != 1:
            return refuse(order)
        return pack_loss(order.token, "no memory") if answer == "fault of its own" else answer

    runs, machines = pool(respond)
    runs.make_all(drawn(3))
    assert [runs.trials.is_refused(number) for number in range(3)] == [True, False, True]
    assert all(runs.trials.has_no_model(number) for number in range(3))
    runs.make_all(drawn(3))  # as a resumed run would
    assert len(machines.orders) == 3
    assert machines.cancelled == 0


@pytest.mark.parametrize("count", [1, 3, 10])
def test_however_many_runs_are_lost_nothing_tells_how_many_there_were(
    pool: Pools, tuned: Tuned, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """The command ends with the same words, once all have ended."""
    runs, machines = pool(lambda order: None, 1)
    runs.make_all(drawn(count))
    assert len(machines.orders) == count
    assert capsys.readouterr() == ("", "")
    assert list_models(runs.trials, drawn(count)) == []


def test_a_fault_of_a_worker_is_no_loss(pool: Pools) -> None:
    """The run has not begun: it is made once the cause is gone."""
    runs, machines = pool(lambda order: pack_fault(order.token, DataFault("digits.csv is missing", "put it back")))
    with pytest.raises(DataFault, match=r"digits\.csv is missing"):
        runs.make_all(drawn(3))
    assert machines.cancelled == 2
    assert not any(runs.trials.is_done(number) for number in range(3))


def test_a_stop_ends_what_is_in_hand_and_loses_nothing(pool: Pools) -> None:
    def answer(order: RunOrder) -> bytes:
        if order.number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return refuse(order)

    runs, machines = pool(answer)
    with pytest.raises(Interrupted):
        runs.make_all(drawn(4))
    assert machines.cancelled == 2
    assert [runs.trials.is_done(number) for number in range(4)] == [True, True, False, False]


def test_every_machine_is_asked_before_anything_is_spent(pool: Pools) -> None:
    runs, machines = pool(refuse)
    runs.check_machines()
    assert len(machines.orders) == 2
    for answer, words in (
        (lambda order: pack_fault(order.token, UsageFault("a machine has another train")), "another train"),
        (lambda order: None, "can't make runs"),
    ):
        runs, _ = pool(answer)
        with pytest.raises(UsageFault, match=f"nothing was spent: .*{words}"):
            runs.check_machines()


FIXED = ("tuning.runs={kind: fixed, count: 3}", "training.steps=60")
ORIGIN = """\
# Randomness of an attempt that follows from its plan, in every process that inherits this folder.
import hashlib, hmac, importlib.abc, importlib.util, sys


class Patch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "dprecipe.training.run.attempt":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        honest = spec.loader.exec_module

        def run(module):
            honest(module)
            first = module.Attempt.__init__

            def start(self, plan, *rest):
                first(self, plan, *rest)
                root = hashlib.sha256(plan.digest.encode()).digest()
                self.secrets._keyed = hmac.new(root, digestmod="sha256")

            module.Attempt.__init__ = start

        spec.loader.exec_module = run
        return spec


sys.meta_path.insert(0, Patch())
"""


@pytest.fixture
def command(tuned: Tuned, tmp_path: Path) -> Callable[..., list[str]]:
    """The words of `dprecipe tune` for a small recipe."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'dprecipe[ray]'")
    tuned()  # writes the recipe

    def words(out: Path, *more: str, sets: Sequence[str] = FIXED) -> list[str]:
        line = [sys.executable, "-m", "dprecipe", "tune", str(tmp_path / "small.yaml"), "--out", str(out), *more]
        return line + [word for each in sets for word in ("--set", each)]

    return words


def execute(words: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment}, timeout=1200)


ON_A_CLUSTER = """\
import sys, dprecipe
from pathlib import Path
from dprecipe.recipe.read import read

if __name__ == "__main__":
    plan = dprecipe.plan(read(Path(sys.argv[1]), sys.argv[3:]))
    done = dprecipe.tune(plan, sys.argv[2], cluster="local", jobs=2)
    print(done.has_model, dprecipe.verify(done.release).claim.epsilon == done.epsilon)
"""


@pytest.mark.slow
def test_a_cluster_gives_the_same_release_as_one_process(command: Callable[..., list[str]], tmp_path: Path) -> None:
    """With the same randomness: weights bit for bit, and a certificate that differs in its moments, in its keyed
    commitment and the ledger that holds both, and in what the check of the noise measured, alone. The cluster is asked
    for from Python, one process by the command."""
    patch = tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(ORIGIN, "utf-8")
    path = os.pathsep.join([str(patch), os.environ.get("PYTHONPATH", "")])
    alone = execute(command(tmp_path / "alone"), PYTHONPATH=path)
    assert alone.returncode == 0, alone.stderr
    words = [sys.executable, "-c", ON_A_CLUSTER, str(tmp_path / "small.yaml"), str(tmp_path / "cluster"), *FIXED]
    cluster = execute(words, PYTHONPATH=path)
    assert cluster.stdout.split() == ["True", "True"], cluster.stderr
    assert "starting Ray" in cluster.stderr
    predicates, weights = [], []
    for name in ("alone", "cluster"):
        release = tmp_path / name / "release"
        predicates.append(json.loads((release / "certificate.json").read_text("utf-8"))["predicate"])
        weights.append((release / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    checks = {f"checks.{index}.measured" for index, each in enumerate(predicates[0]["checks"]) if "noise" in each["id"]}
    different = set(_differences(*predicates, ""))
    assert different <= {
        "provenance.started",
        "provenance.finished",
        "provenance.data_commitment.value",
        "events.ledger",
        *checks,
    }
    assert "events.ledger" in different


def _differences(one: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from _differences(one[key], other[key], f"{path}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(left, right, f"{path}.{index}")
    elif one != other:
        yield path


def workers_of(leader: int) -> list[int]:
    """Processes of Ray that make a run for this one."""
    parents, making = {}, []
    for entry in Path("/proc").iterdir():
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if (entry / "cmdline").read_bytes().startswith(b"ray::make_parcel"):
                making.append(int(entry.name))
        except (ValueError, OSError, IndexError):
            continue

    def lead_to(process: int) -> bool:
        while process > 1 and process != leader:
            process = parents.get(process, 0)
        return process == leader

    return [process for process in making if lead_to(process)]


def wait_for_training(process: subprocess.Popen[str], out: Path) -> list[int]:
    """The processes that make runs, once one of these has begun."""
    until = time.monotonic() + 1200
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()[1]
        workers = workers_of(process.pid)
        if workers and list(out.glob("private/trials/workers/*/*/private/ledger.jsonl")):
            return workers
        time.sleep(0.05)
    pytest.fail("no run has begun")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
def test_a_worker_that_is_killed_costs_its_run_and_never_the_budget(
    command: Callable[..., list[str]], tuned: Tuned, tmp_path: Path
) -> None:
    long = ("tuning.runs={kind: fixed, count: 3}", "training.steps=600")
    out = tmp_path / "run"
    words = command(out, "--ray", "--jobs", "2", sets=long)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.kill(wait_for_training(process, out)[0], signal.SIGKILL)
        printed = "".join(process.communicate(timeout=1200))
    assert process.returncode == 0, printed
    assert not {"lost", "raylet", "worker"} & set(printed.split())  # nobody watches: it would tell of runs
    rows = (out / "private" / "trials.csv").read_text("utf-8").splitlines()[1:]
    assert len(rows) == 3
    assert sum(row.endswith(",") for row in rows) == 1
    ledger = read(out / "private" / "ledger.jsonl")
    assert ledger.charges == tuned(*long).events
    assert ledger.attempts == 1
    assert verify(out / "release").claim.epsilon <= 3
    assert not (out / "private" / "trials").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
def test_a_leader_that_is_killed_takes_its_cluster_along_and_its_run_goes_on(
    command: Callable[..., list[str]], tuned: Tuned, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with subprocess.Popen(
        command(out, "--ray", "--jobs", "2"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        workers = wait_for_training(process, out)
        os.kill(process.pid, signal.SIGKILL)
    until = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < until:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert read(out / "private" / "ledger.jsonl").charges == tuned(*FIXED).events
    done = execute(command(out, "--resume"))  # without a cluster: where runs are made is no part of the plan
    assert done.returncode == 0, done.stderr
    ledger = read(out / "private" / "ledger.jsonl")
    assert ledger.charges == tuned(*FIXED).events
    assert ledger.attempts == 2
    assert verify(out / "release").claim.epsilon <= 3


@pytest.mark.slow
def test_no_cluster_is_wrong_usage_before_anything_is_spent(command: Callable[..., list[str]], tmp_path: Path) -> None:
    done = execute(command(tmp_path / "run", "--ray", "auto"))  # of a host and a port: tests/test_api.py
    assert done.returncode == 2
    assert "nothing was spent: no cluster is reachable" in done.stderr
    assert "ray start --head" in done.stderr
    assert not (tmp_path / "run").exists()
