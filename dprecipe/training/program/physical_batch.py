"""`runtime.physical_batch: auto`: the largest number of records whose step leaves a margin of memory.

Measured before anything is spent, on synthetic records of the run's shapes. What is free also depends on how much the
loaded records take: on their number and sizes, not on what they say. Sizes are powers of two and three times powers of
two, so nearly the same memory gives the same choice. It decides how sums are rounded, and no bound depends on it; so it
is kept with the run and stays private, and all processes take one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.progress import report_progress
from dprecipe.training.checks.memory import run_synthetic_step
from dprecipe.training.checks.memory_meter import MemoryMeter, meter_of
from dprecipe.training.engine.planning import forget_plans
from dprecipe.training.engine.sizes import one_size
from dprecipe.training.processes.processes import Processes
from dprecipe.training.program.program import StepwiseProgram, records_at_once
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.steps.contract import Build

FIRST = 8
"""The first size that is tried: the engine's plan is made with about as many records, whatever the size."""


def measure_physical_batch(plan: Plan, build: Build, program: StepwiseProgram) -> int:
    """Returns the number of records that this process can hold in memory at once, as measured; at most as many as a
    batch has.

    Guarantees: nothing is computed on a record, nothing is charged, and the model is left as it was.

    Raises:
        RunFailed: not even one record fits, or the memory can't be measured.
    """
    report_progress("measuring how many records fit into memory at once")
    meter = meter_of(program.device)

    def step(size: int) -> None:
        if one_size(program.device):
            forget_plans(program.model)  # there a plan is made for a size
        run_synthetic_step(plan, build, program, size)

    size, peak = find_largest(sizes_up_to(records_at_once(plan)), meter, step)
    if one_size(program.device):
        forget_plans(program.model)
    report_progress(
        f"runtime.physical_batch: {size}, measured: a step takes {peak / 2**30:.2f} GiB of the "
        f"{meter.limit / 2**30:.2f} GiB that it may"
    )
    return size


def sizes_up_to(largest: int) -> list[int]:
    """Returns 1, 2, 3, 4, 6, 8, 12, … up to the first that is not below `largest`."""
    sizes = [1]
    while sizes[-1] < largest:
        power = 1 << (sizes[-1].bit_length() - 1)
        sizes.append(2 * power if sizes[-1] > power or power == 1 else power * 3 // 2)
    return sizes


def find_largest(sizes: list[int], meter: MemoryMeter, step: Callable[[int], None]) -> tuple[int, int]:
    """Returns the largest of these ascending sizes whose step keeps to the meter's limit, and its peak.

    A step's memory is taken to grow at most in proportion to its records, the part that does not grow included: so no
    step is begun that could exceed the limit, except on devices that survive it. There, the next size is tried as well.

    Raises:
        RunFailed: not even the smallest keeps to it.
    """
    fits: tuple[int, int] | None = None
    untried = list(sizes)
    size = max(each for each in sizes if each <= max(FIRST, sizes[0]))
    while True:
        peak = meter.peak(partial(step, size))
        if peak is not None and peak <= meter.limit:
            fits = size, peak
            untried = [each for each in untried if each > size]
            growth = max(1, peak - meter.idle) / size
            safe = [each for each in untried if meter.idle + growth * each <= meter.limit]
            following = safe[-1:] or (untried[:1] if meter.survives else [])
        else:
            untried = [each for each in untried if each < size]
            following = untried[-1:] if fits is None else untried[:1] if meter.survives else []
        if not following:
            break
        size = following[0]
    if fits is None:
        raise RunFailed(
            "runtime.physical_batch: auto: a step on one record exceeds what memory allows "
            f"({meter.limit / 2**30:.2f} GiB, a margin kept); nothing was spent",
            "take a smaller model or a larger machine; or write physical_batch: 1, which keeps no margin",
        )
    return fits


def agree_on_size(plan: Plan, measured: int | None, processes: Processes, folder: RunFolder | None) -> Plan:
    """Returns the plan with the size that all processes and all attempts of a run take; the plan itself if it has a
    number.

    `measured`: by this process; `folder`: the leader's. The first attempt takes the least of all processes and keeps
    it; later ones take what was kept, which decides how their sums are rounded.

    Raises:
        RunFailed: the folder can't be written, or what it keeps is damaged; nothing was spent.
    """
    if measured is None:
        return plan
    least = processes.least(measured)

    def choose() -> int:
        if folder is None:
            raise RunFailed("internal fault: the leader has no run folder", "please report this")
        kept = folder.physical_batch
        if kept is None:
            folder.keep_physical_batch(least)
            return least
        if kept != least:
            report_progress(
                f"runtime.physical_batch: {kept}, with which the run began; {least} was measured now. "
                "A number in the recipe replaces it"
            )
        return kept

    return with_size(plan, processes.agree(choose))


def with_size(plan: Plan, size: int) -> Plan:
    """Returns the plan with this many records at once."""
    return replace(plan, runtime=plan.runtime.model_copy(update={"physical_batch": size}))
