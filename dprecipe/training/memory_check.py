"""Before anything is spent: a synthetic step shows whether the device's memory holds one of the run's."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dprecipe.data.augment import make_augmentation
from dprecipe.data.raw import Labels
from dprecipe.data.records import Records, RecordSource
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.plan import Plan
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.events import take_first
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.progress import report_progress
from dprecipe.training.engine.full_precision import in_run_precision
from dprecipe.training.engine.sizes import batch_size_bound, one_size
from dprecipe.training.gate import Gate
from dprecipe.training.memory_meter import has_room
from dprecipe.training.noisy_steps import Build
from dprecipe.training.program import Synthetic
from dprecipe.training.provenance import UNTESTED
from dprecipe.training.records import Store

Step = Callable[[int], None]
"""A synthetic step with parts of so many records."""


def check_memory(plan: Plan, build: Build, model: nn.Module, records: RecordSource, device: torch.device) -> None:
    """One synthetic step, with parts as large as the run's, fits into the device's memory; said is how much it takes.

    On a CPU nothing is tried: its memory is the machine's, which pages.

    `records`: the run's own, of which one tells shapes and types.

    Guarantees: nothing is computed on a record, nothing is charged, and the model is left as it was.

    Raises:
        RunFailed: it does not fit; says what would.
    """
    if device.type != "cuda":
        return
    report_progress(f"{device}: {UNTESTED}; `make gpu-check` tries what a run relies on")
    torch.cuda.reset_peak_memory_stats(device)
    check_step(
        plan.runtime.physical_batch_size,
        lambda max_records: run_synthetic_step(plan, build, model, records, device, max_records),
        device,
    )
    used, total = torch.cuda.max_memory_allocated(device), torch.cuda.mem_get_info(device)[1]
    report_progress(f"a step takes {used / 2**30:.1f} GiB of the {total / 2**30:.0f} GiB of {device}")


def check_step(records: int, step: Step, device: torch.device) -> None:
    """A step with parts of so many records has room.

    Raises:
        RunFailed: it has not; the most records that do, of half as many each time, are named.
    """
    if has_room(partial(step, records)):
        return
    fewer = records // 2
    while fewer and not has_room(partial(step, fewer)):
        fewer //= 2
    raise RunFailed(
        f"a step with parts of {records} records does not fit into the memory of {device}; nothing was spent",
        f"set runtime.physical_batch to {fewer}, which fits" if fewer else "take a smaller model, or a larger device",
    )


@final
class Zeros:
    """Units of a batch, each with all the records that it may have: of the shapes and types of the run's own, and all
    zeros."""

    def __init__(self, plan: Plan, records: RecordSource, units: int) -> None:
        self.unit_count, unit = units, plan.data.unit
        self.units = None if unit == "record" else np.repeat(np.arange(units), unit.max_records)
        self._count = units if self.units is None else len(self.units)
        pending = isinstance(records, Records) and records.next_stage is not None
        features, labels = (Synthetic(plan) if pending else records).batch(np.arange(min(1, len(records))))
        self._like = np.zeros((1, *features.shape[1:]), features.dtype), np.zeros(1, labels.dtype)

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], Labels]:
        count = len(range(self._count)[indices]) if isinstance(indices, slice) else len(indices)
        features, labels = self._like
        return np.repeat(features, count, 0), np.repeat(labels, count, 0)


def run_synthetic_step(
    plan: Plan, build: Build, model: nn.Module, records: RecordSource, device: torch.device, max_records: int
) -> None:
    """The sum, the noise and the update of a step on synthetic records, at most so many at once; all is thrown away."""
    # Not compiled: that is done once, where its program is kept.
    runtime = plan.runtime.model_copy(update={"physical_batch": max_records, "compile": False})
    plan = replace(plan, runtime=runtime)
    rows = plan.room.copies * (1 if plan.data.unit == "record" else plan.data.unit.max_records)
    units = min(plan.data.max_units, max(1, max_records // rows))
    if one_size(device):  # all parts are alike, and of most batches no larger
        units = min(units, math.ceil(batch_size_bound(plan.room.largest_expected_batch)))
    zeros = Zeros(plan, records, units)
    store = Store(zeros, device, lambda generator: make_augmentation(plan.data.preprocess, generator))
    with tempfile.TemporaryDirectory() as folder:
        ledger, secrets = LedgerWriter(Path(folder) / "ledger.jsonl", plan.digest), Secrets()
        try:
            gate = Gate(take_first(plan.room.events, 1), plan.budget, ledger, secrets)
            module = build(plan, model, store, gate, secrets)
            ticket = gate.admit()
            if ticket is None:
                raise RunFailed("the gate admits not even one event of the plan")
            with in_run_precision():
                module.try_out(ticket, np.arange(units))
        finally:
            ledger.abandon()
