"""The probe: checks on synthetic records that a program treats records independently, before it sees a private one.

Legend: B records, P parameters, C classes. Everything runs on a copy of the module, which itself is unchanged.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dprecipe.data.targets import ClassTarget, Target
from dprecipe.faults import RunFailed
from dprecipe.models.form import Form
from dprecipe.training.engine.bookkeeping import pad_records
from dprecipe.training.engine.clipped_sum import Loss
from dprecipe.training.engine.full_precision import in_full_precision
from dprecipe.training.engine.sizes import one_size
from dprecipe.training.probe.case import Case, Failed, ProbeTest
from dprecipe.training.probe.independence import check_gradients, check_independent, check_outputs
from dprecipe.training.probe.place import locate_failure, name_failure
from dprecipe.training.probe.sizes import larger_batches
from dprecipe.training.probe.sums import SumTests

PerRecordGradients = Callable[[nn.Module, Loss, Tensor, Tensor], Tensor]
"""(module, loss, features (B, …), labels (B,)) -> gradients (B, P), of the trained parameters in order."""

RECORDS = 6
MAX_RECORDS = 33
"""Records that the engine takes at once, by default."""
MEND = (
    "mend the module: forward takes any number of records of the shape that data and preprocess declare, and any values"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One test of this program and its result. `measured` is text."""

    id: str
    text: str
    passed: bool
    measured: str
    remedy: str = ""
    """Remedy for this failure; empty for the general remedy."""

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "text": self.text, "passed": self.passed, "measured": self.measured}


def require_passed(checks: Sequence[Check], module: nn.Module) -> tuple[Check, ...]:
    """Returns the checks of `examine_module` on `module`; all have passed.

    Raises:
        RunFailed: a check failed. The message names each, what was measured, and the layer, if it is known.
    """
    failed = [check for check in checks if not check.passed]
    if failed:
        raise RunFailed(
            f"{name_failure(module, '')} failed the probe on synthetic records; no private record was used:\n"
            + "\n".join(f"- expected: {check.text}; found: {check.measured}" for check in failed),
            next((check.remedy for check in failed if check.remedy), "")
            or "use layers and losses that treat each record independently: GroupNorm instead of batch norm, no "
            "statistics of the batch, no term of the loss that records share",
        )
    return tuple(checks)


def examine_module(
    module: nn.Module,
    loss: Loss,
    records: Form | Sequence[int],
    target: Target | int,
    per_record_gradients: PerRecordGradients | None = None,
    sums: SumTests | None = None,
    *,
    seed: int = 0,
    largest: int = MAX_RECORDS,
    gradients: float = math.inf,
) -> tuple[Check, ...]:
    """Checks the program on synthetic records of this form (or of quantities of this shape), and of this label (or of
    so many classes); results in a fixed order.

    Each half of the engine that is passed is compared with a loop over single records. A module whose outputs differ
    only because it draws new numbers is random, and does not mix records: so it draws the same numbers again when
    records are replaced, and its draws are frozen when numbers of records are compared. `largest`: how many records the
    engine may take at once. `gradients`: how many the run computes in all; a part of them may be spent on checks.

    Guarantees: `module`, its buffers and the global generators are left as they were.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        in_full_precision(),
        torch.enable_grad(),
    ):
        torch.manual_seed(seed)
        subject = copy.deepcopy(module).train()
        form = records if isinstance(records, Form) else Form.of(records)
        if per_record_gradients is not None and one_size(device):
            per_record_gradients = _pad_batches(per_record_gradients)
        target = ClassTarget(target) if isinstance(target, int) else target
        case = Case.of(subject, loss, form, target, RECORDS, seed, device)
        return tuple(_run_checks(case, per_record_gradients, sums, largest, gradients))


def _pad_batches(gradients_of: PerRecordGradients) -> PerRecordGradients:
    """Returns the function with its batches padded to one size, as training does on devices where parts have one
    size."""

    def padded(module: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> Tensor:
        return gradients_of(module, loss, pad_records(features, RECORDS), pad_records(labels, RECORDS))[: len(labels)]

    return padded


def _run_checks(
    case: Case, gradients_of: PerRecordGradients | None, sums: SumTests | None, largest: int, gradients: float
) -> Iterator[Check]:
    for number, (name, text, test) in enumerate(_tests(case, gradients_of, sums, largest, gradients)):
        remedy = ""
        try:
            yield Check(name, text, True, test())
            continue
        except Failed as failure:
            measured, remedy = str(failure), failure.remedy
        except Exception as error:  # of the module or the loss, whose code is the user's
            measured, remedy = locate_failure(error, case.module), MEND
        yield Check(name, text, False, measured, remedy)
        if number == 0:
            return  # a program without outputs has nothing further to show


def _tests(
    case: Case, gradients_of: PerRecordGradients | None, sums: SumTests | None, largest: int, gradients: float
) -> Iterator[ProbeTest]:
    yield "output", "finite outputs, one row for each record", case.output
    yield "loss_per_record", "one finite loss for each record, with no reduction", case.loss_per_record
    yield "records_independent", "no record influences another's output", partial(check_outputs, case)
    yield (
        "losses_independent",
        "no record influences another's loss",
        lambda: check_independent(case, case.losses, "loss"),
    )
    if gradients_of is not None:
        yield (
            "per_record_gradients",
            "per-record gradients equal those of a loop over single records",
            _with_frozen_draws(
                case, lambda: case.compare_gradients(gradients_of(case.module, case.loss, case.features, case.labels))
            ),
        )
        yield (
            "gradients_independent",
            "no record influences another's gradient",
            lambda: check_gradients(case, lambda x, y: _draw_gradients(case, gradients_of, x, y)),
        )
    if sums is not None:
        for name, text, test in sums(case):
            yield name, text, _with_frozen_draws(case, test)
    text = "no output and no sum depends on the number of records, up to what the engine processes at once"
    yield "larger_batches", text, lambda: larger_batches(case, largest, gradients)
    # The last one: by now the module has been through everything that training does.
    yield "buffers_unmoved", "in training no buffer changes, and no weight changes by itself", case.buffers_unmoved


def _with_frozen_draws(case: Case, test: Callable[[], str]) -> Callable[[], str]:
    def tested() -> str:
        with case.freeze_draws():
            return test()

    return tested


def _draw_gradients(case: Case, gradients_of: PerRecordGradients, features: Tensor, labels: Tensor) -> Tensor:
    with case.drawing():
        return gradients_of(case.module, case.loss, features, labels)
