"""Memory that steps take, and memory that there is: of a GPU, or of this machine.

| device | limit | peak |
|---|---|---|
| CUDA | what torch has, and `GPU_SHARE` of what is free | torch's allocator |
| CPU | what this process has, and `MACHINE_SHARE` of what is available to it | the kernel's mark of resident memory |

Available on a CPU is the least of what the machine and each control group of the process have left, divided by the
processes of the run on this machine.

The shares are estimates, not bounds: other programs, scores and checkpoints need memory too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, final

import torch

from dprecipe.faults import RunFailed
from dprecipe.training.engine.sizes import free_bytes, is_out_of_memory

GPU_SHARE = 0.85
"""The usable share of a GPU's free memory: the rest covers fragments, libraries and compiled passes."""
MACHINE_SHARE = 0.5
"""The usable share of a machine's memory: others use it, and running out of memory ends a process."""
SMALLER_PARTS = "set runtime.physical_batch to half of it, and continue with --resume"
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@contextmanager
def explain_out_of_memory(what: str, remedy: str, fault: type[RunFailed] = RunFailed) -> Iterator[None]:
    """Inside, a device without memory is a fault that says `what` it means for the run, and the remedy.

    Raises:
        RunFailed: the memory of a device ran out.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        message = ". ".join(str(error).splitlines()[0].split(". ")[:2])
        raise fault(f"the device's memory ran out {what}: {message}", remedy) from None


class MemoryMeter(Protocol):
    """A meter of one device's bytes: before steps, while they run, and at most."""

    idle: int
    """Bytes in use before any step."""
    limit: int
    """Steps may use this many bytes in all."""
    survives: bool
    """True if a step that does not fit can be tried: the device refuses it, and the process goes on."""

    def peak(self, step: Callable[[], None]) -> int | None:
        """Returns the most bytes in use while `step` runs; None: it did not fit."""


@final
class CudaMeter:
    """The memory of a CUDA device."""

    survives = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.idle = torch.cuda.memory_allocated(device)
        self.limit = self.idle + int(GPU_SHARE * free_bytes(device))

    def peak(self, step: Callable[[], None]) -> int | None:
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.max_memory_allocated(self._device) if fits(step) else None


@final
class ProcessMeter:
    """The resident memory of this process."""

    survives = False

    def __init__(self, sharing: int = 1, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        """`sharing`: processes of the run on this machine.

        Raises:
            RunFailed: the system does not say.
        """
        self._proc = proc / "self"
        try:
            self.idle = _read_kilobytes(self._proc / "status", "VmRSS")
            available = min([_read_kilobytes(proc / "meminfo", "MemAvailable"), *_read_limits(self._proc, cgroups)])
        except (OSError, ValueError):
            raise RunFailed(
                "runtime.physical_batch: auto: this system does not say how much memory there is",
                "write a number of records, for instance physical_batch: 512",
            ) from None
        self.limit = self.idle + int(MACHINE_SHARE * max(0, available) / sharing)

    def peak(self, step: Callable[[], None]) -> int | None:
        with suppress(OSError):  # refused: the mark is then that of the whole process so far, which is no less
            (self._proc / "clear_refs").write_text("5")
        return _read_kilobytes(self._proc / "status", "VmHWM") if fits(step) else None


def meter_of(device: torch.device) -> MemoryMeter:
    """Returns the meter of a run's device.

    Raises:
        RunFailed: its memory can't be measured.
    """
    if device.type == "cuda":
        return CudaMeter(device)
    if device.type == "cpu":
        return ProcessMeter(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    raise RunFailed(
        f"runtime.physical_batch: auto: the memory of {device} can't be measured",
        "write a number of records, for instance physical_batch: 512",
    )


def fits(step: Callable[[], None]) -> bool:
    """Returns True if a step ends without an error that says there is no memory; other errors are raised."""
    try:
        step()
    except Exception as error:  # libraries have errors of their own for it
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True


def _read_kilobytes(path: Path, name: str) -> int:
    """Reads the bytes of a line `name: … kB`."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", path.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    if found is None:
        raise ValueError(name)
    return int(found[1]) * 1024


def _read_limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yields the free bytes of each control group of this process, and of each group above it; nothing where there is
    no limit.

    In a container a path may be that of the machine outside: folders that are not there are skipped, up to the mount.
    """
    try:
        lines = (proc / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, root = ("memory.max", "memory.current", "inactive_file"), cgroups
        elif "memory" in controllers.split(","):
            names, root = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), cgroups / "memory"
        else:
            continue
        folder = root / path.strip("/")
        for each in (folder, *folder.parents):
            if not each.is_relative_to(root):
                break
            with suppress(OSError, ValueError):  # "max" is no number, and no limit
                limit, used = (int((each / name).read_text()) for name in names[:2])
                cached = re.search(rf"^{names[2]} (\d+)$", (each / "memory.stat").read_text(), re.MULTILINE)
                yield limit - used + (int(cached[1]) if cached else 0)
