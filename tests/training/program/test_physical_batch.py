"""The physical batch that memory allows: the search, the meters, and a run that keeps to what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.training.checks import memory
from dprecipe.training.checks.memory import agree_on_size, find_largest, sizes_up_to, with_size
from dprecipe.training.checks.memory_meter import ProcessMeter, meter_of
from dprecipe.training.processes.processes import SingleProcess
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.start import rehearse

Small = Callable[..., Plan]
MIB = 1 << 20


@dataclass
class Simulated:
    """A device: a step takes `fixed` bytes and `each` for a record, but for small ones, which take `planning`."""

    fixed: int
    each: int
    limit: int
    survives: bool = False
    idle: int = 100
    planning: int = 0
    tried: list[int] = field(default_factory=list)
    exceeded: int = 0

    def peak(self, step: Callable[[], None]) -> int | None:
        step()
        used = self.idle + max(self.planning, self.fixed + self.each * self.tried[-1])
        self.exceeded += used > self.limit
        return None if self.survives and used > self.limit + 50 else used

    def largest(self, most: int = 4096) -> int:
        return find_largest(sizes_up_to(most), self, self.tried.append)[0]


def test_sizes() -> None:
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(7) == [1, 2, 3, 4, 6, 8]
    assert sizes_up_to(48) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    assert sizes_up_to(49)[-1] == 64


@pytest.mark.parametrize("planning", [0, 160, 500])
@pytest.mark.parametrize("fixed", [0, 40, 4000])
@pytest.mark.parametrize("limit", [5_000, 20_000, 100_000])
def test_no_step_is_begun_that_could_exceed_a_machine_s_memory(limit: int, fixed: int, planning: int) -> None:
    machine = Simulated(fixed, 10, limit, planning=planning)
    size = machine.largest()
    assert machine.exceeded == 0
    assert size == max(machine.tried)
    if fixed <= 40 and planning <= 160:  # what does not grow is small: half of what would fit, or more
        assert size >= min(4096, (limit - fixed - 100) / 10) / 2


@pytest.mark.parametrize("fixed", [0, 4000])
@pytest.mark.parametrize(("limit", "planning"), [(4_200, 0), (5_000, 0), (5_000, 160), (9_000, 0), (100_000, 0)])
def test_a_device_that_refuses_is_filled(limit: int, fixed: int, planning: int) -> None:
    device = Simulated(fixed, 10, limit, survives=True, planning=planning)
    fitting = [size for size in sizes_up_to(4096) if 100 + max(planning, fixed + 10 * size) <= limit]
    assert device.largest() == fitting[-1]
    assert device.exceeded <= 2


def test_less_than_the_first_size_fits() -> None:
    assert Simulated(0, 1000, 3_200).largest() == 3
    assert Simulated(0, 1000, 1_200, survives=True).largest() == 1
    assert Simulated(0, 10, 5_000).largest(most=5) == 6  # a batch has no more
    for survives in (False, True):
        with pytest.raises(RunFailed, match="one record") as failed:
            Simulated(5000, 1000, 3_200, survives=survives).largest()
        assert "smaller model" in str(failed.value.remedy)


def written(folder: Path, cgroup: str, available: int) -> Path:
    (folder / "self").mkdir(parents=True)
    (folder / "self" / "status").write_text(f"Name:\tx\nVmHWM:\t{300 * 1024} kB\nVmRSS:\t{100 * 1024} kB\n")
    (folder / "self" / "cgroup").write_text(cgroup)
    (folder / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {available * 1024} kB\n")
    return folder


def group(folder: Path, names: tuple[str, str, str], limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached * MIB}\n")


NEW = "memory.max", "memory.current", "inactive_file"
OLD = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


@pytest.mark.parametrize(
    ("cgroup", "inner", "names", "limits", "free"),
    [
        ("0::/\n", "", NEW, {}, 1000),
        ("0::/a/b\n", "", NEW, {"a/b": "max", "a": str(600 * MIB)}, 600),  # 600 less 100, and 100 of files
        ("0::/a/b\n", "", NEW, {"a/b": str(300 * MIB), "a": str(600 * MIB)}, 300),
        ("0::/host/path\n", "", NEW, {"": str(200 * MIB)}, 200),  # a container sees its own mount
        ("4:cpu,memory:/a\n0::/\n", "memory", OLD, {"a": str(400 * MIB), "": str(1 << 62)}, 400),
    ],
)
@pytest.mark.parametrize("sharing", [1, 2])
def test_a_machine_s_memory(
    tmp_path: Path,
    cgroup: str,
    inner: str,
    names: tuple[str, str, str],
    limits: dict[str, str],
    free: int,
    sharing: int,
) -> None:
    proc = written(tmp_path / "proc", cgroup, 1000)
    for path, limit in limits.items():
        group(tmp_path / "cgroup" / inner / path, names, limit, 100, 100)
    meter = ProcessMeter(sharing, proc, tmp_path / "cgroup")
    assert meter.idle == 100 * MIB
    assert meter.limit == (100 + free // 2 // sharing) * MIB
    assert meter.peak(lambda: None) == 300 * MIB


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="does not say") as failed:
        ProcessMeter(1, tmp_path)
    assert "physical_batch: 512" in str(failed.value.remedy)
    with pytest.raises(RunFailed, match="mps can't be measured"):
        meter_of(torch.device("mps"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's marks are Linux's")
def test_the_kernel_s_mark_is_seen() -> None:
    """256 MiB that are let go of again, and then none: other tests' threads take less."""
    meter = meter_of(torch.device("cpu"))
    assert meter.limit > meter.idle > 0
    more = meter.peak(lambda: torch.ones(64 * MIB).sum())
    assert more is not None
    assert more >= meter.idle + 200 * MIB


@dataclass
class Two:
    """The leader of two processes, of which the other measured `other`."""

    other: int

    def least(self, value: int) -> int:
        return min(value, self.other)

    def agree(self, answer: Callable[[], int]) -> int:
        return answer()


def test_all_processes_and_attempts_take_one_size(small: Small, tmp_path: Path) -> None:
    auto = small("runtime.physical_batch=auto")
    folder = RunFolder.create(tmp_path / "run", auto)
    assert folder.physical_batch is None
    assert agree_on_size(auto, 48, Two(32), folder).runtime.physical_batch == 32  # type: ignore[arg-type]
    assert agree_on_size(auto, 96, SingleProcess(), folder).runtime.physical_batch == 32
    given = small("runtime.physical_batch=7")
    assert agree_on_size(given, None, SingleProcess(), folder).runtime.physical_batch == 7
    assert with_size(auto, 5).digest == auto.digest
    for damaged in ("", "[]", '{"physical_batch": 0}', '{"physical_batch": true}', '{"physical_batch": "8"}'):
        (folder.private / "physical_batch.json").write_text(damaged)
        with pytest.raises(RunFailed, match="does not hold a number"):
            agree_on_size(auto, 96, SingleProcess(), folder)


@pytest.mark.slow
def test_a_run_measures_once_and_keeps_to_it(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is measured by the real meter is the whole batch; a simulated one then decides what is kept."""
    auto = small("runtime.physical_batch=auto")
    assert rehearse(auto).checks
    device = Simulated(0, 10, 400, survives=True)
    largest = find_largest

    def limited(sizes: list[int], meter: object, step: Callable[[int], None]) -> tuple[int, int]:
        def noting(size: int) -> None:
            device.tried.append(size)
            step(size)

        return largest(sizes, device, noting)

    monkeypatch.setattr(memory, "find_largest", limited)
    finished = run(auto, tmp_path / "run")
    assert finished.verified
    assert finished.plan.runtime.physical_batch == 24  # 340 of 400; 32 records take 420
    assert RunFolder(tmp_path / "run").physical_batch == 24
    assert (finished.folder / "release" / "certificate.json").exists()
