"""The probe: before a program sees a private record, it shows on made-up ones that it treats records one by
one.

Legend: B records, P parameters, C classes. Everything runs on a copy of the module: the probe moves nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dprecipe.faults import RunFailed
from dprecipe.training.engine.clipped_sum import Batch, ClippedSum, Loss
from dprecipe.training.probe_case import ERRORS, Case, Failed

PerRecordGradients = Callable[[nn.Module, Loss, Tensor, Tensor], Tensor]
"""(module, loss, features (B, …), labels (B,)) -> gradients (B, P), of the trained parameters in order."""

RECORDS = 6
TOLERANCE = 1e-4
"""Largest relative error: single precision adds up in another order, no more."""
ROUNDINGS = 10
"""How many times the measured rounding of an entry is allowed on top."""


class ClippedSumOf(Protocol):
    """The engine: see `dprecipe.training.engine.clipped_sum`."""

    def __call__(
        self, model: nn.Module, loss: Loss, batch: Batch, clip_norm: float, physical_batch: int
    ) -> ClippedSum: ...


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
    per_record_gradients: PerRecordGradients | None = None,
    clipped_sum: ClippedSumOf | None = None,
    *,
    seed: int = 0,
) -> tuple[Check, ...]:
    """The checks of `examine`, all passed.

    Raises:
        RunFailed: one did not; names each, what was measured, and the layer where that can be told.
    """
    checks = examine(module, loss, shape, classes, per_record_gradients, clipped_sum, seed=seed)
    failed = [check for check in checks if not check.passed]
    if failed:
        raise RunFailed(
            f"{type(module).__name__} failed the probe on synthetic records; no private record was used:\n"
            + "\n".join(f"- expected: {check.text}; found: {check.measured}" for check in failed),
            "use layers and losses that treat each record on its own: GroupNorm in place of batch "
            "norm, no statistics "
            "of the batch, no term of the loss that records share",
        )
    return checks


def examine(
    module: nn.Module,
    loss: Loss,
    shape: Sequence[int],
    classes: int,
    per_record_gradients: PerRecordGradients | None = None,
    clipped_sum: ClippedSumOf | None = None,
    *,
    seed: int = 0,
) -> tuple[Check, ...]:
    """What the program does with synthetic records of this shape, check by check, in a fixed order.

    Each half of the engine that is given is checked against a loop over single records. Dropout rests: it is
    the one layer known to draw for each record on its own.

    Guarantees: `module`, its buffers and the global generators are left as they were.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
        torch.enable_grad(),
    ):
        torch.manual_seed(seed)
        subject = copy.deepcopy(module).train()
        for layer in subject.modules():
            if isinstance(layer, _DropoutNd):
                layer.eval()
        case = Case.of(subject, loss, shape, classes, RECORDS, seed, device)
        return tuple(_examined(case, per_record_gradients, clipped_sum))


_Test = tuple[str, str, Callable[[], str]]
"""Id, what is expected, and a test that answers in words what it measured, or raises `Failed`."""


def _examined(case: Case, gradients_of: PerRecordGradients | None, clipped_sum: ClippedSumOf | None) -> Iterator[Check]:
    for number, (name, text, test) in enumerate(_tests(case, gradients_of, clipped_sum)):
        try:
            yield Check(name, text, True, test())
            continue
        except Failed as failure:
            measured = str(failure)
        except ERRORS as error:  # of the module or the loss, whose code is the user's
            first_line = (str(error).splitlines() or [""])[0]
            measured = f"{type(error).__name__}: {first_line[:120]}"
        yield Check(name, text, False, measured)
        if number == 0:
            return  # a program without outputs has nothing further to show


def _tests(case: Case, gradients_of: PerRecordGradients | None, clipped_sum: ClippedSumOf | None) -> Iterator[_Test]:
    yield "output", "finite outputs, one row of logits for each record", case.output
    yield "loss_per_record", "one finite loss for each record, nothing added up", case.loss_per_record
    yield "records_independent", "no record influences another's output", case.outputs_independent
    yield "losses_independent", "no record influences another's loss", case.losses_independent
    if gradients_of is not None:
        yield (
            "per_record_gradients",
            "per-record gradients equal those of a loop over single records",
            lambda: _gradients_equal(case, gradients_of),
        )
        yield (
            "gradients_independent",
            "no record influences another's gradient",
            lambda: case.independent(lambda x, y: gradients_of(case.module, case.loss, x, y), "gradient", locate=False),
        )
    if clipped_sum is not None:
        yield (
            "clipped_sum",
            "the clipped sum equals that of a loop over single records",
            lambda: _clipped_sum_equal(case, clipped_sum),
        )
        yield (
            "clipped_sum_edges",
            "an empty lot gives zero, a non-finite record adds zero, and a unit stays within the clip norm",
            lambda: _clipped_sum_edges(case, clipped_sum),
        )
    # The last one: by now the module has been through everything that training does.
    yield "buffers_unmoved", "no buffer moves in training", case.buffers_unmoved


def _gradients_equal(case: Case, gradients_of: PerRecordGradients) -> str:
    expected = case.single_gradients
    found = gradients_of(case.module, case.loss, case.features, case.labels)
    if found.shape != expected.shape:
        raise Failed(f"shape {list(found.shape)}, expected {list(expected.shape)}")
    # Each parameter on its own scale, so that a small one can't hide behind a large one.
    floor = 1e-6 * float(expected.abs().max()) + 1e-30
    worst = 0.0
    for name, part in case.slices():
        scale = max(float(expected[:, part].abs().max()), floor)
        difference = (found[:, part] - expected[:, part]).abs()
        error = float((difference - ROUNDINGS * case.rounding[:, part]).clamp_min(0.0).max()) / scale
        if not error <= TOLERANCE:
            raise Failed(f"relative error {error:.1e} in parameter {name!r}, at most {TOLERANCE:.0e} is rounding")
        worst = max(worst, error)
    return f"largest relative error {worst:.1e}"


def _clipped_sum_equal(case: Case, clipped_sum: ClippedSumOf) -> str:
    singles = case.single_gradients
    norms = torch.linalg.vector_norm(singles, dim=1)
    clip = float(norms.median()) or 1.0  # about half of the records are clipped
    expected = ((clip / norms.clamp_min(1e-30)).clamp(max=1.0)[:, None] * singles).sum(0)
    worst = 0.0
    for physical_batch in (RECORDS, 2):
        found = _value(clipped_sum, case, Batch(case.features, case.labels), clip, physical_batch)
        if found.shape != expected.shape:
            raise Failed(f"shape {list(found.shape)}, expected {list(expected.shape)}")
        error = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
        if not error <= TOLERANCE:
            raise Failed(f"relative error {error:.1e} with physical batches of {physical_batch}")
        worst = max(worst, error)
    return f"largest relative error {worst:.1e}"


def _clipped_sum_edges(case: Case, clipped_sum: ClippedSumOf) -> str:
    empty = _value(clipped_sum, case, Batch(case.features[:0], case.labels[:0]), 1.0, RECORDS)
    if bool((empty != 0).any()):
        raise Failed("an empty lot gave a sum that is not zero")
    broken = case.features.clone()
    broken[0] = torch.nan
    found = _value(clipped_sum, case, Batch(broken, case.labels), 1.0, RECORDS)
    without = _value(clipped_sum, case, Batch(case.features[1:], case.labels[1:]), 1.0, RECORDS)
    scale = float(without.abs().max()) + 1e-30
    if not float((found - without).abs().max()) <= TOLERANCE * scale:
        raise Failed("a record of NaN changed the sum")
    clip = 0.5 * float(torch.linalg.vector_norm(case.single_gradients, dim=1).min()) or 1.0
    one_unit = torch.zeros(RECORDS, dtype=torch.long, device=case.labels.device)
    value = _value(clipped_sum, case, Batch(case.features, case.labels, one_unit), clip, RECORDS)
    norm = float(torch.linalg.vector_norm(value.double()))
    if not norm <= clip * (1 + 1e-6):
        raise Failed(f"a unit of {RECORDS} records adds {norm / clip:.6f} clip norms")
    return f"zero, zero, {norm / clip:.6f} of the clip norm"


def _value(clipped_sum: ClippedSumOf, case: Case, batch: Batch, clip: float, physical_batch: int) -> Tensor:
    return clipped_sum(case.module, case.loss, batch, clip, physical_batch).value
