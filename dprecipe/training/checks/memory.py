"""Before anything is spent: synthetic steps show whether the device's memory holds one of the run's, and whether
anything that is public would refuse it."""

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

from dprecipe.contract.plan import Plan
from dprecipe.data.augment import make_augmentation
from dprecipe.data.raw import Labels
from dprecipe.data.records import Records
from dprecipe.faults import RunFailed
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.events import take_first
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.progress import report_progress
from dprecipe.training.checks.memory_meter import fits
from dprecipe.training.engine.full_precision import in_run_precision
from dprecipe.training.engine.sizes import batch_size_bound, one_size
from dprecipe.training.program.program import StepwiseProgram, Synthetic
from dprecipe.training.program.records import Store
from dprecipe.training.publish.provenance import UNTESTED
from dprecipe.training.run.gate import Gate
from dprecipe.training.steps.contract import Build, StepContext
from dprecipe.training.steps.step_failures import locate_failures

REHEARSED = 2
"""Units of a step that only shows whether there can be one."""
Step = Callable[[int], None]
"""A synthetic step with parts of this many records."""


def rehearse_step(plan: Plan, build: Build, program: StepwiseProgram) -> None:
    """Takes a step on few synthetic records through all that a run's step does, compiled where the recipe insists on
    it. Anything that would refuse every step refuses this one.

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

    `max_records`: at once, at most. `units`: of the batch, at most; left out, as many as one part holds. `final`: with
    this number of records at once the run will begin, so that a program that the recipe insists on is compiled and kept
    for it.
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
            with in_run_precision(), located if program.custom_model else nullcontext():
                module.try_out(ticket, np.arange(count))
        finally:
            ledger.abandon()
