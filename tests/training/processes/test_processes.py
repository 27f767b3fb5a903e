"""Several processes are one program: same batches, one noise, one ledger; whatever their number."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dprecipe
from dprecipe.api import run as run_plan
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.ledger import read
from dprecipe.recipe.read import read as read_recipe
from dprecipe.training.processes import processes as together
from dprecipe.training.processes.processes import PATIENCE, join_processes, launch_processes
from dprecipe.training.program.program import device_of
from dprecipe.training.publish.provenance import digest_of, digest_set

RECIPE = """\
recipe: dprecipe/v1
name: together
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
model: {kind: mlp, hidden: [8]}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 1.0}
  sampling: {scheme: poisson, batch_size: 3}
budget: {epsilon: auto, delta: 1e-5}
training:
  steps: 40
  optimizer: {kind: sgd, lr: 0.5, momentum: 0.9}
runtime: {device: cpu, insecure: {seed: 5}}
release: {report: false}
"""


def started(tmp_path: Path, processes: int, *more: str, text: str = RECIPE) -> subprocess.Popen[str]:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text, encoding="utf-8")
    out = tmp_path / f"run-{processes}"
    command = [sys.executable, "-m", "dprecipe", "run", str(recipe), "--out", str(out)]
    command += ["--set", f"runtime.processes={processes}", *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def finished(run: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = run.communicate(timeout=120)
    return run.returncode, out, err


def weights(folder: Path) -> torch.Tensor:
    tensors = load_file(folder / "release" / "model.safetensors")
    return torch.cat([tensors[name].flatten().double() for name in sorted(tensors)])


@pytest.mark.slow
def test_every_update_is_that_of_a_single_process(tmp_path: Path) -> None:
    """Batches of 3 leave a process without a record now and then: in some of 40 steps, but for a chance below 1e-9.

    Below, two processes with paid steps end with the weights of one, too."""
    processes = 3
    for count in (1, processes):
        code, out, err = finished(started(tmp_path, count))
        assert code == 0, err
        assert out.count("completed: spent") == 1  # one of them speaks
    alone, together = (weights(tmp_path / f"run-{count}") for count in (1, processes))
    # The weights hold the noise of 40 steps: another draw, batch or order of steps would change their first digit.
    assert float((alone - together).abs().max()) < 2e-5 * float(alone.abs().max())
    ledgers = [read(tmp_path / f"run-{count}" / "private" / "ledger.jsonl") for count in (1, processes)]
    assert ledgers[0].charges == ledgers[1].charges
    assert sum(charge.count for charge in ledgers[1].charges) == 40


@pytest.mark.slow
def test_an_encoded_run_of_two_processes_is_that_of_one(tmp_path: Path) -> None:
    """Parts of other sizes round gradients otherwise. Where two magnitudes nearly tie, that moves their bounds: in few
    coordinates, and by less than a step of their codeword."""
    mechanism = """kind: encoded
  codebook: {source: gaussian, size: 5}
  noise: {family: gaussian, multiplier: 3.0}
  microbatch: 3
  sampling: {scheme: poisson, batch_size: 24}
budget"""
    start, end = RECIPE.index("kind: dpsgd"), RECIPE.index("budget")
    text = RECIPE[:start] + mechanism + RECIPE[end + len("budget") :]
    for count in (1, 2):
        code, _, err = finished(started(tmp_path, count, text=text))
        assert code == 0, err
    alone, together = (weights(tmp_path / f"run-{count}") for count in (1, 2))
    assert float((alone - together).abs().max()) < 2e-4 * float(alone.abs().max())
    ledgers = [read(tmp_path / f"run-{count}" / "private" / "ledger.jsonl") for count in (1, 2)]
    assert ledgers[0].charges == ledgers[1].charges


@pytest.mark.slow
def test_paid_steps_are_run_by_one_process_and_known_to_all(tmp_path: Path) -> None:
    steps = "[{flatten: {}}, {dp_standardize: {bounds: [0, 1], noise_multiplier: 5}}, {dp_pca: {components: 20, "
    steps += "noise_multiplier: 5}}]"
    text = RECIPE.replace("  size: 1438\n", f"  size: 1438\n  preprocess: {steps}\n")
    for count in (1, 2):
        code, _, err = finished(started(tmp_path, count, text=text))
        assert code == 0, err
        assert err.count("dp_pca reads the private records") == 1
    kept = [(tmp_path / f"run-{count}" / "private" / "stages" / "2.json").read_text() for count in (1, 2)]
    assert json.loads(kept[0])["constants"] == json.loads(kept[1])["constants"]
    alone, together = (weights(tmp_path / f"run-{count}") for count in (1, 2))
    assert float((alone - together).abs().max()) < 2e-5 * float(alone.abs().max())


@pytest.mark.slow
def test_several_processes_end_without_a_model_where_a_paid_step_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "  preprocess: [{flatten: {}}, {dp_pca: {components: 8, row_norm: 8, share: 0.9}}]\n"
    text = RECIPE.replace("model: {", f"{step}model: {{", 1).replace("epsilon: auto", "epsilon: 2")
    text = text.replace("multiplier: 1.0", "multiplier: auto").replace(", insecure: {seed: 5}", "")
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "dprecipe.training.run.stages.release_stage", die
    )  # in this process: not in those started below
    with pytest.raises(KeyboardInterrupt):
        run_plan(make_plan(read_recipe(tmp_path / "recipe.yaml")), tmp_path / "run-2")
    code, out, err = finished(started(tmp_path, 2, "--resume", text=text))
    assert code == 3, err
    assert "no model: spent" in out
    dprecipe.verify(tmp_path / "run-2" / "release")


@pytest.mark.slow
def test_a_run_is_stopped_and_goes_on(tmp_path: Path) -> None:
    long = RECIPE.replace("steps: 40", "steps: 100000")
    ledger, spent = tmp_path / "run-2" / "private" / "ledger.jsonl", 0
    for resume in ((), ("--resume",)):
        settled = ledger.read_text(encoding="utf-8").count("settle") if resume else 0
        with started(tmp_path, 2, *resume, text=long) as run:
            deadline = time.monotonic() + 90
            while not ledger.exists() or ledger.read_text(encoding="utf-8").count("settle") < settled + 3:
                if run.poll() is not None or time.monotonic() > deadline:
                    run.kill()
                    pytest.fail(run.communicate()[1])
                time.sleep(0.1)
            run.send_signal(signal.SIGINT)
            code, _, err = finished(run)
        assert code == 130, err
        assert "Traceback" not in err
        before, spent = spent, sum(charge.count for charge in read(ledger).charges)
        assert before < spent < 100000


def test_a_signal_between_two_lines_of_the_launcher_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's launcher times its calls: a signal before the clock is read surfaces as an error of what follows."""
    import torch.distributed.elastic.metrics.api as metrics
    import torch.distributed.launcher.api as launcher
    from torch.distributed.elastic.multiprocessing.api import SignalException

    def interrupted() -> float:
        raise SignalException("stopped", signal.SIGINT)

    monkeypatch.setenv(together.LAUNCHER, "")  # restored at the end
    monkeypatch.setattr(launcher, "elastic_launch", lambda *config: metrics.prof(lambda *arguments: None))
    with monkeypatch.context() as patched:
        patched.setattr(metrics.time, "time", interrupted)
        assert launch_processes(2, [], "cpu") == 130
    monkeypatch.setattr(launcher, "elastic_launch", lambda *config: lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        launch_processes(2, [], "cpu")


def children(process: int) -> list[int]:
    result = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may have ended
            if int(path.read_text().rsplit(")", 1)[1].split()[1]) == process:
                result.append(int(path.parent.name))
    return result


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_processes_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    ledger = tmp_path / "run-2" / "private" / "ledger.jsonl"
    with started(tmp_path, 2, text=RECIPE.replace("steps: 40", "steps: 100000")) as run:
        deadline = time.monotonic() + 120
        while not ledger.exists() or "settle" not in ledger.read_text(encoding="utf-8"):
            assert run.poll() is None, run.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        ranks = children(run.pid)
        assert len(ranks) >= 2
        run.kill()
        run.wait()
        deadline = time.monotonic() + 30
        while any(map(alive, ranks)) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [rank for rank in ranks if alive(rank)]
        for rank in left:
            os.kill(rank, signal.SIGKILL)
    assert left == []


DRIVER = textwrap.dedent(
    """
    import json, sys
    import numpy as np
    import torch
    from dprecipe.faults import UsageFault
    from dprecipe.noise.entropy import Secrets
    from dprecipe.training.processes.processes import join_processes

    processes = join_processes(torch.device("cpu"))
    asked = []
    answer = processes.agree(lambda: asked.append(1) or processes.rank)
    units = np.array([0, 2, 3, 4, 5, 9])
    part = processes.part(units, units).tolist()
    grouped = processes.part(units, np.array([1, 1, 0, 2, 0, 1])).tolist()
    value = torch.full((4,), float(processes.rank + 1), dtype=torch.float64)
    total = processes.summed(value)
    noisy = processes.released(lambda: total + processes.rank, total)
    seed = processes.seed(Secrets(1).stream("layers", 0))
    try:
        processes.check_same("recipe", processes.rank)
        other = ""
    except UsageFault as fault:
        other = fault.message
    with open(f"{sys.argv[1]}/{processes.rank}.json", "w") as file:
        told = [len(asked), answer, part, grouped, value.tolist(), total.tolist(), noisy.tolist(), seed, other]
        json.dump(told, file)
    torch.distributed.destroy_process_group()
    """
)


@pytest.mark.slow
def test_what_processes_tell_each_other(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", str(driver), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    message = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(3)]
    assert [row[0] for row in message] == [1, 0, 0]  # the leader alone is asked
    assert {row[1] for row in message} == {0}
    assert [row[2] for row in message] == [[0, 3, 9], [4], [2, 5]]
    assert [row[3] for row in message] == [[3, 5], [0, 2, 9], [4]]  # a group is in one part whole
    assert [row[4] for row in message] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]  # what was summed is left alone
    assert all(row[5] == [6.0] * 4 for row in message)
    assert all(row[6] == [6.0] * 4 for row in message)  # the leader's
    words = Secrets(1).stream("layers", 0).words(3)
    assert [row[7] for row in message] == [int(word >> np.uint64(1)) for word in words]
    assert all("process 1 of this run has a different recipe" in row[8] for row in message)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The second of two processes, of a group that only notes what it is asked."""
    noted: dict[str, Any] = {"set": [], "groups": [], "sent": [], "objects": []}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    fake = together.distributed
    monkeypatch.setattr(torch.cuda, "set_device", noted["set"].append)
    monkeypatch.setattr(fake, "is_initialized", lambda: False)
    monkeypatch.setattr(fake, "init_process_group", lambda *given, **named: noted.update(begun=(given, named)))
    monkeypatch.setattr(fake, "new_group", lambda **named: noted["groups"].append(named) or "the processors")
    monkeypatch.setattr(fake, "get_rank", lambda: 1)
    monkeypatch.setattr(fake, "get_world_size", lambda: 2)
    monkeypatch.setattr(fake, "broadcast", lambda tensor, src: noted["sent"].append(tensor.device.type))
    monkeypatch.setattr(fake, "all_reduce", lambda tensor: noted["sent"].append(tensor.device.type))

    def objects(box: list[Any], value: Any = None, **named: Any) -> None:
        noted["objects"].append((named["group"], str(named.get("device", "cpu"))))

    monkeypatch.setattr(fake, "broadcast_object_list", objects)
    monkeypatch.setattr(fake, "all_gather_object", objects)
    return noted


def test_each_process_takes_its_own_gpu_before_anything_is_shared(group: dict[str, Any]) -> None:
    device = torch.device("cuda", 1)
    processes = join_processes(device)
    assert group["set"] == [device]
    given, named = group["begun"]
    assert given == ("cpu:gloo,cuda:nccl",)
    assert named == {"timeout": PATIENCE}
    assert group["groups"] == [{"backend": "gloo", "timeout": PATIENCE}]
    # What is no tensor never touches a GPU, whichever is the current one.
    processes.agree(lambda: 1)
    processes.check_same("plan", 1)
    assert group["objects"] == [("the processors", "cpu")] * 2


def test_a_led_process_asks_for_the_noisy_sum_where_its_own_is(group: dict[str, Any]) -> None:
    """On the CPU it would be copied there and back in every step."""
    processes = join_processes(torch.device("cuda", 1))
    processes._device = torch.device("meta")  # type: ignore[misc]
    own = torch.zeros(5, dtype=torch.float32, device="meta")
    result = processes.released(lambda: pytest.fail("it leads nobody"), own)
    assert (result.device.type, result.dtype) == ("meta", torch.float64)
    assert processes.summed(own).device.type == "meta"
    assert group["sent"] == ["meta", "meta"]


def test_more_processes_than_gpus_are_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL would say "duplicate GPU", once all of them have come."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("auto", "cuda"):
        with pytest.raises(UsageFault, match="this machine has 2 GPUs"):
            launch_processes(3, [], device)


def test_a_device_is_named_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert device_of("auto") == device_of("cuda") == torch.device("cuda", 3)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of("cuda") == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("nobody asked for CUDA"))
    assert device_of("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RunFailed, match="not available"):
        device_of("cuda")


@pytest.mark.parametrize(
    ("before", "after", "reason", "code", "expected"),
    [
        (False, True, "budget", 4, 0),
        (False, True, "no_model", 3, 3),
        (False, True, "no_model", 4, 3),
        (False, False, None, 4, 4),
        (True, True, "budget", 2, 2),
    ],
)
def test_a_process_that_is_lost_after_the_release_takes_nothing_from_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: bool,
    after: bool,
    reason: str | None,
    code: int,
    expected: int,
) -> None:
    from dprecipe.cli import run as command
    from dprecipe.training.run.folder import RunFolder

    folder = RunFolder(tmp_path)

    def launch(*_: object) -> int:
        if after:
            folder.release.mkdir(exist_ok=True)
        return code

    if before:
        folder.release.mkdir()
    monkeypatch.setattr(together, "launch_processes", launch)
    monkeypatch.setattr("dprecipe.privacy.ledger.read", lambda _: SimpleNamespace(stop_reason=reason))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert command._launch(make_plan(read_recipe(tmp_path / "recipe.yaml")), folder) == expected


class OwnKind:
    """Records of a kind that only Python knows."""

    def __init__(self, features: Any, units: Any = None) -> None:
        self.features, self.units = features, units

    @property
    def unit_count(self) -> int:
        return len(self.features) if self.units is None else int(self.units.max()) + 1

    def __len__(self) -> int:
        return len(self.features)

    def batch(self, indices: Any) -> Any:
        features = self.features[indices]
        return features, np.zeros(len(features), np.int64)


def test_records_of_their_own_kind_are_compared_whole() -> None:
    """A unit that is in two parts of a batch moves the sum twice."""
    numbers = np.arange(10_000, dtype=np.float32).reshape(5000, 2)
    digest = digest_set(OwnKind(numbers))
    assert digest == digest_set(OwnKind(numbers.copy()))
    changed = numbers.copy()
    changed[4999, 1] += 1
    others = [OwnKind(changed), OwnKind(numbers[::-1]), OwnKind(numbers[:-1]), OwnKind(numbers, np.arange(5000) // 2)]
    assert digest not in {digest_set(other) for other in others}
    assert digest_of([numbers]) != digest_of([numbers.reshape(2, 5000)])
