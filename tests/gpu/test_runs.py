"""Whole runs on a GPU: published, verified, stopped, continued, refused where there is no room; several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.faults import Interrupted, RunFailed
from dprecipe.models.lora import LowRankLayer
from dprecipe.models.schema import Lora
from dprecipe.privacy.ledger import read
from dprecipe.training.program import records
from dprecipe.training.program.records import Store, UnitRowsBatch
from dprecipe.training.run.start import rehearse
from dprecipe.training.steps import noisy_steps

pytestmark = pytest.mark.gpu
Small = Callable[..., Plan]


def test_15_a_run_is_published_and_verifies(gpu: torch.device, small: Small, tmp_path: Path) -> None:
    """With held-out records, AdamW and an average; scored after training, where the trainer has let go."""
    done = run(small(), tmp_path / "run")
    assert done.stop_reason == "completed"
    assert done.score is not None
    dprecipe.verify(done.release)
    certificate = json.loads((done.release / "certificate.json").read_text(encoding="utf-8"))
    assert "single_precision" in json.dumps(certificate)
    if gpu.type == "cuda":
        assert torch.cuda.get_device_name(gpu) in json.dumps(certificate)


def test_15_adapters_are_merged_where_they_are(gpu: torch.device, small: Small, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [LowRankLayer(nn.Linear(*size), Lora(rank=2)) for size in ((64, 16), (16, 10))]
    model = nn.Sequential(nn.Flatten(), layers[0], nn.Tanh(), layers[1])
    done = run(small(), tmp_path / "run", model=model)
    assert done.score is not None
    dprecipe.verify(done.release)


def test_15_a_rehearsal_describes_the_device(gpu: torch.device, small: Small) -> None:
    rehearsal = rehearse(small())
    assert rehearsal.seconds is not None
    assert rehearsal.seconds > 0
    assert not [remark for remark in rehearsal.remarks if "single records" in remark]


@pytest.mark.parametrize("first", ["same", "cpu"])
def test_16_a_run_is_stopped_and_goes_on(
    gpu: torch.device, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """On the device, and on the device after a CPU; AdamW's counters stay on the CPU."""
    real = noisy_steps.NoisySteps.take_step
    modules: list[Any] = []

    def stopped(module: Any) -> bool:
        made = real(module)
        if module.steps_done == 7:
            module.request_stop()
        return made

    monkeypatch.setattr(noisy_steps.NoisySteps, "take_step", stopped)
    with pytest.raises(Interrupted):
        run(small(*(["runtime.device=cpu"] if first == "cpu" else [])), tmp_path / "run")

    def seen(module: Any) -> bool:
        modules.append(module)
        return real(module)

    monkeypatch.setattr(noisy_steps.NoisySteps, "take_step", seen)
    done = run(small(), tmp_path / "run", resume=True)
    assert done.stop_reason in ("completed", "budget")
    dprecipe.verify(done.release)
    ledger = read(tmp_path / "run" / "private" / "ledger.jsonl")
    assert ledger.attempts == 2
    assert sum(charge.count for charge in ledger.charges) == 20
    state = modules[-1].state()["optimizer"]["state"]
    assert {slot["step"].device.type for slot in state.values()} == {"cpu"}
    assert {slot["exp_avg"].device.type for slot in state.values()} == {gpu.type}


@pytest.mark.parametrize("several", [False, True])
def test_26_records_fetched_ahead_arrive_whole(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    """Records that have no room on the device, while it is busy: no part is overwritten by the one after it."""
    generator = np.random.default_rng(0)
    units = np.sort(generator.integers(300, size=4000)) if several else None
    units = units if units is None else np.unique(units, return_inverse=True)[1]
    all_records = Records(
        generator.random((4000, 3, 16, 16), dtype=np.float32), generator.integers(10, size=4000), units
    )
    monkeypatch.setattr(records, "bytes_for_records", lambda device: 0)
    monkeypatch.setattr(records, "one_size", lambda device: True)  # of both stores
    there, here = Store(all_records, gpu), Store(all_records, torch.device("cpu"))
    busy = torch.randn(2048, 2048, device=gpu)
    for seed in range(3):
        chosen = np.flatnonzero(generator.random(there.units) < 0.5)
        batches = [store.batch(chosen, seed) for store in (there, here)]
        actual = []
        for part in (UnitRowsBatch(batches[0]) if several else batches[0]).parts(128):
            actual.append(part)
            busy = torch.nn.functional.normalize(busy @ busy)
        expected = list((UnitRowsBatch(batches[1]) if several else batches[1]).parts(128))
        assert len(actual) == len(expected) > 3
        for one, other in zip(actual, expected, strict=True):
            assert one.features.device == gpu
            assert torch.equal(one.features.cpu(), other.features)
            assert torch.equal(one.labels.cpu(), other.labels)


def test_17_memory_that_does_not_suffice_costs_nothing(cuda: torch.device, small: Small, tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(cuda).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (1 << 30) / total), cuda)
    try:
        plan = small(
            "model={kind: mlp, hidden: [20000, 20000]}", "runtime.physical_batch=1024", "training.optimizer.kind=adam"
        )
        with pytest.raises(RunFailed, match=r"does not fit|out of memory|ran out"):
            run(plan, tmp_path / "run")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, cuda)
        torch.cuda.empty_cache()
    assert not (tmp_path / "run" / "private" / "ledger.jsonl").exists()


DRIVER = textwrap.dedent(
    """
    import sys
    import torch
    from dprecipe.training.processes import processes as module
    from dprecipe.training.processes.processes import join_processes

    device, backend = torch.device(sys.argv[2]), sys.argv[3]
    if backend == "gloo":  # two processes on one GPU, which nccl refuses
        module.distributed.init_process_group("gloo")
    processes = join_processes(device)
    if backend == "gloo":
        processes._device = torch.device("cpu")
    units = torch.tensor([0, 2, 4]).numpy()
    part = processes.part(units, units)  # one process has none of them
    value = torch.full((5,), float(len(part)), dtype=torch.float64, device=device)
    total = processes.summed(value)
    if processes.rank == 0:
        import time
        time.sleep(3)  # the others wait for a leader that scores
    agreed = processes.agree(lambda: "go on")
    noisy = processes.released(lambda: total + 1, total)
    assert total.device == noisy.device == device, (total.device, noisy.device)
    with open(f"{sys.argv[1]}/{processes.rank}", "w") as file:
        file.write(f"{total.tolist()} {noisy.tolist()} {agreed}")
    torch.distributed.destroy_process_group()
    """
)
SEVERAL = [("gloo", 1)] + ([("nccl", 2)] if torch.cuda.is_available() and torch.cuda.device_count() > 1 else [])


@pytest.mark.parametrize(("backend", "gpus"), SEVERAL)
def test_24_two_processes_add_up_on_the_device(gpu: torch.device, tmp_path: Path, backend: str, gpus: int) -> None:
    driver = tmp_path / "driver.py"
    device = '"cuda:" + str(int(__import__("os").environ["LOCAL_RANK"]))' if gpus > 1 else None
    text = DRIVER.replace("sys.argv[2]", device) if device else DRIVER
    driver.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(driver)]
    command += [str(tmp_path), str(gpu), backend]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    reports = [(tmp_path / str(rank)).read_text(encoding="utf-8") for rank in range(2)]
    assert reports[0] == reports[1] == f"{[3.0] * 5} {[4.0] * 5} go on"
