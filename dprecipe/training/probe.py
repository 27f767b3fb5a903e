"""The probe: before a program sees a private record, it shows on made-up ones that it treats records one by one.

Legend: B records, P parameters, C classes. Everything runs on a copy of the module: the probe moves nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dprecipe.faults import RunFailed

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (B, C), labels (B,)) -> losses (B,)."""
PerRecordGradients = Callable[[nn.Module, Loss, Tensor, Tensor], Tensor]
"""(module, loss, features (B, …), labels (B,)) -> gradients (B, P), in the order of `module.parameters()`."""
ClippedSumOf = Callable[[nn.Module, Loss, Tensor, Tensor, float], Tensor]
"""(module, loss, features, labels, clip norm) -> sum of the clipped gradients (P,)."""

RECORDS = 6
TOLERANCE = 1e-4
"""Largest relative error of a parameter's gradient: single precision adds up in another order, no more."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tested on this very program, and what came out. `measured` is in words."""

    id: str
    text: str
    passed: bool
    measured: str

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "text": self.text, "passed": self.passed, "measured": self.measured}


def probe(
    module: nn.Module,
    loss: Loss,
    shape: Sequence[int],
    classes: int,
    *,
    per_record_gradients: PerRecordGradients | None = None,
    clipped_sum: ClippedSumOf | None = None,
    seed: int = 0,
) -> tuple[Check, ...]:
    """What the program does with synthetic records of this shape, check by check, in a fixed order.

    The engine is given as `per_record_gradients`, `clipped_sum`, or both; each that is given is checked. Later
    checks are left out where an earlier one shows that they can't be made. Dropout rests: it is the one layer known
    to be random for each record on its own.

    Guarantees: `module`, its buffers and the global generators are left as they were.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        subject = copy.deepcopy(module).train()
        for layer in subject.modules():
            if isinstance(layer, _DropoutNd):
                layer.eval()
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn((RECORDS, *shape), generator=generator).to(device)
        others = torch.randn((RECORDS, *shape), generator=generator).to(device)
        labels = (torch.arange(RECORDS) % classes).to(device)
        return tuple(
            _checks(_Case(subject, loss, features, others, labels, classes), per_record_gradients, clipped_sum)
        )


def require(checks: Sequence[Check]) -> None:
    """Refuse a program that failed its probe.

    Raises:
        RunFailed: names each check that failed and what was measured.
    """
    failed = [check for check in checks if not check.passed]
    if failed:
        raise RunFailed(
            "the model failed the probe on synthetic records; no private record was read:\n"
            + "\n".join(f"- {check.text}: no, {check.measured}" for check in failed),
            "use layers and losses that treat each record on its own (GroupNorm in place of batch norm, no "
            "statistics of the batch, no term of the loss that is shared by the records)",
        )


@dataclass(frozen=True, slots=True)
class _Case:
    module: nn.Module
    loss: Loss
    features: Tensor
    others: Tensor
    labels: Tensor
    classes: int


def _checks(
    case: _Case, gradients_of: PerRecordGradients | None, clipped_sum: ClippedSumOf | None
) -> Iterator[Check]:
    buffers = _buffers(case.module)
    output = _forward(case)
    yield output
    if not output.passed:
        return
    per_record = _loss_per_record(case)
    yield per_record
    yield _outputs_independent(case)
    yield _losses_independent(case) if per_record.passed else _not_made("independent-losses", "losses")
    if per_record.passed:
        singles = _single_gradients(case)
        if gradients_of is not None:
            yield _gradients_equal(case, singles, gradients_of)
            yield _gradients_independent(case, gradients_of)
        if clipped_sum is not None:
            yield _clipped_sum_equal(case, singles, clipped_sum)
    yield _buffers_unmoved(case, buffers)
