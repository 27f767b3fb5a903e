"""Before anything is spent: synthetic steps show whether the device's memory holds one of the run's, and whether
anything that is public would refuse it.

`runtime.physical_batch: auto` takes the largest number of records whose step leaves a margin of memory. It is measured
before anything is spent, on synthetic records of the run's shapes. What is free also depends on how much the loaded
records take: on their number and sizes, not on what they say. Sizes are powers of two and three times powers of two, so
nearly the same memory gives the same choice. It decides how sums are rounded, and no bound depends on it; so it is kept
with the run and stays private, and all processes take one.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dprecipe.contract.plan import Plan
from dprecipe.data.augment import make_augmentation
from dprecipe.data.raw import Labels
from dprecipe.data.records import Records
from dprecipe.faults import InternalFault, RunFailed
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.events import take_first
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.progress import report_progress
from dprecipe.training.checks.memory_meter import MemoryMeter, fits, meter_of
from dprecipe.training.engine.full_precision import in_run_precision
from dprecipe.training.engine.planning import forget_plans
from dprecipe.training.engine.sizes import batch_size_bound, one_size, widest_type
from dprecipe.training.processes.processes import Processes, world_size
from dprecipe.training.program.program import StepwiseProgram, Synthetic, records_at_once
from dprecipe.training.program.records import Store
from dprecipe.training.publish.provenance import UNTESTED
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.gate import Gate
from dprecipe.training.steps.contract import Build, StepContext
from dprecipe.training.steps.step_failures import locate_failures

REHEARSED = 2
"""Units of a step that only shows whether there can be one."""
Step = Callable[[int], None]
"""A synthetic step with parts of this many records."""


def rehearse_step(plan: Plan, build: Build, program: StepwiseProgram) -> None:
    """Takes a step on a few synthetic records as the run will take its own, compiled where the recipe says
    `compile: true`. Anything that would refuse every step refuses this one.

    Guarantees: nothing is computed on a record, nothing is charged, and the model is left as it was.

    Raises:
        RunFailed: no step of this plan can be taken; nothing was spent.
    """
    run_synthetic_step(plan, build, program, plan.runtime.physical_batch_size, units=REHEARSED, final=True)


def check_memory(plan: Plan, build: Build, program: StepwiseProgram) -> None:
    """Checks that one synthetic step, with parts as large as the run's, fits into the device's memory, and reports how
    much it takes.

    On a CPU nothing is tried: its memory is the machine's, which pages.

    Guarantees: those of `rehearse_step`.

    Raises:
        RunFailed: it does not fit; the message says what would.
    """
    device = program.device
    if device.type != "cuda":
        return
    report_progress(f"{device}: {UNTESTED}; `make gpu-check` tries what a run relies on")
    torch.cuda.reset_peak_memory_stats(device)
    check_step(
        plan.runtime.physical_batch_size,
        lambda max_records: run_synthetic_step(plan, build, program, max_records),
        device,
    )
    used, total = torch.cuda.max_memory_allocated(device), torch.cuda.mem_get_info(device)[1]
    report_progress(f"a step takes {used / 2**30:.1f} GiB of the {total / 2**30:.0f} GiB of {device}")


def check_step(records: int, step: Step, device: torch.device) -> None:
    """Checks that a step with parts of this many records fits into memory.

    Raises:
        RunFailed: it does not; the message names the most records that do, halved each time.
    """
    if fits(partial(step, records)):
        return
    fewer = records // 2
    while fewer and not fits(partial(step, fewer)):
        fewer //= 2
    raise RunFailed(
        f"a step with parts of {records} records does not fit into the memory of {device}; nothing was spent",
        f"set runtime.physical_batch to {fewer}, which fits" if fewer else "take a smaller model, or a larger device",
    )


@final
class SyntheticUnits:
    """Units of a batch, each with all the records that it may have: of the shapes and types of the run's own, and all
    the same synthetic record."""

    def __init__(self, plan: Plan, program: StepwiseProgram, units: int) -> None:
        self.unit_count, unit = units, plan.data.unit
        self.units = None if unit == "record" else np.repeat(np.arange(units), unit.max_records)
        self._count = units if self.units is None else len(self.units)
        records = program.sets.train
        pending = isinstance(records, Records) and records.next_stage is not None
        features, labels = (Synthetic(plan) if pending else records).batch(np.arange(min(1, len(records))))
        drawn = program.form.draw(1, torch.Generator().manual_seed(0)).numpy()
        self._like = drawn.astype(features.dtype), np.zeros(1, labels.dtype)

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], Labels]:
        count = len(range(self._count)[indices]) if isinstance(indices, slice) else len(indices)
        features, labels = self._like
        return np.repeat(features, count, 0), np.repeat(labels, count, 0)


def run_synthetic_step(
    plan: Plan,
    build: Build,
    program: StepwiseProgram,
    max_records: int,
    *,
    units: int | None = None,
    final: bool = False,
) -> None:
    """Makes the sum, the noise and the update of a step on synthetic records, and discards them.

    `max_records`: the most records that are computed at once. `units`: the most units of the batch; by default as many
    as one part holds. `final`: the run will begin with this `max_records`, so a compiled program is kept for it.
    """
    compiled = final and plan.runtime.compile is True
    runtime = plan.runtime.model_copy(update={"physical_batch": max_records, "compile": compiled})
    plan, device = replace(plan, runtime=runtime), program.device
    rows = plan.mechanism_plan.copies * (1 if plan.data.unit == "record" else plan.data.unit.max_records)
    count = min(plan.data.max_units, max(1, max_records // rows), units or sys.maxsize)
    if one_size(device):  # all parts are alike, and of most batches no larger
        count = min(count, math.ceil(batch_size_bound(plan.mechanism_plan.largest_expected_batch)))
    store = Store(
        SyntheticUnits(plan, program, count),
        device,
        lambda generator: make_augmentation(plan.data.preprocess, generator),
    )
    remedy = "mend the module; nothing was spent"
    with tempfile.TemporaryDirectory() as folder:
        ledger, secrets = LedgerWriter(Path(folder) / "ledger.jsonl", plan.digest), Secrets()
        try:
            gate = Gate(take_first(plan.mechanism_plan.events, 1), plan.budget, ledger, secrets)
            module = build(StepContext(plan, program.model, store, gate, secrets))
            ticket = gate.admit()
            if ticket is None:
                raise RunFailed("the gate admits not even one event of the plan")
            located = locate_failures(program.model, "it saw synthetic records", remedy)
            kept = _fill_kept_noise(plan, program)
            with in_run_precision(), located if program.custom_model else nullcontext():
                module.try_out(ticket, np.arange(count))
            del kept  # until here it takes its memory
        finally:
            ledger.abandon()


def _fill_kept_noise(plan: Plan, program: StepwiseProgram) -> list[Tensor]:
    """Returns vectors as large as those that a run with bands keeps from its first steps on."""
    bands = max(1 if (s := c.event.strategy) is None else len(s.bands) for c in plan.mechanism_plan.events)
    trained = sum(parameter.numel() for parameter in program.model.parameters() if parameter.requires_grad)
    own = trained if plan.runtime.sharding == "none" else math.ceil(trained / world_size())
    device = widest_type(program.device)
    return [torch.ones(own, dtype=torch.float64, device=device) for _ in range(bands - 1)]


FIRST = 8
"""The first size that is tried: the engine's plan is made with about as many records, whatever the size."""


def measure_physical_batch(plan: Plan, build: Build, program: StepwiseProgram) -> int:
    """Measures how many records this process can hold in memory at once; returns at most a batch.

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
            raise InternalFault("the leader has no run folder")
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
