"""The probe: checks on synthetic records that a program treats records independently, before it sees a private one.

No probe can exclude that a record changes what another gets (its output, its loss, its gradient) at values that no
synthetic record had; so records are tried as they are usually drawn, many times as large, and at the ends of what they
can be.

Legend: B records, P parameters, C classes. Everything runs on a copy of the module, which itself is unchanged.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from dprecipe.data.targets import ClassTarget, Target
from dprecipe.faults import RunFailed
from dprecipe.models.form import Form
from dprecipe.training.engine.bookkeeping import pad_records
from dprecipe.training.engine.clipped_sum import Loss
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.full_precision import in_full_precision
from dprecipe.training.engine.rounding import limit_difference
from dprecipe.training.engine.sizes import one_size
from dprecipe.training.probe.case import (
    KINK_DRAWS,
    ROUNDING,
    TOLERANCE,
    Case,
    Failed,
    ProbeTest,
    move_rows,
    relative_change,
)
from dprecipe.training.probe.place import locate_failure, name_failure
from dprecipe.training.probe.sizes import clip_half, larger_batches, set_beside, sum_at_once
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


Function = Callable[[Tensor, Tensor], Tensor]
"""(features (B, …), labels (B,)) -> (B, …)."""
BEYOND = 1e9
"""More than any number of tokens."""
MAGNITUDES = (10.0, 100.0)
"""Factors that make quantities as large: a module may do something else there."""


@final
@dataclass(frozen=True, slots=True)
class TriedRecords:
    """Records (B, …), and others that replace them one by one; `where` says in words what they are like."""

    features: Tensor
    others: Tensor
    where: str = ""


def list_extremes(form: Form, features: Tensor, others: Tensor) -> Iterator[TriedRecords]:
    """Records far from the usual ones: quantities many times as large, and records of nothing but the ends of a range:
    0 and 1, to which declared ranges are mapped, or the first token (padding) and the last."""
    if form.sequences:  # of our own models alone, whose tokens are of one size
        return
    if form.tokens is None:
        for magnitude in MAGNITUDES:
            yield TriedRecords(
                magnitude * features, magnitude * others, f" where records are {magnitude:g} times as large"
            )
    last = form.limited(torch.full_like(features, BEYOND))
    last = torch.where(last < BEYOND, last, 1.0)  # of quantities, and where it is not known how many tokens there are
    first, where = torch.zeros_like(features), " where records are at the ends of their range"
    yield TriedRecords(set_beside(last, first), set_beside(first, last), where)


def check_outputs(case: Case) -> str:
    """Checks that no record changes another's output, usual or extreme; says what was measured.

    Extreme records show what a module does at large values alone; rows that are not finite have to stay what they are.

    Raises:
        Failed: one does.
    """
    measured, untried = check_independent(case, case.outputs, "output", locate=True), ""
    for tried in list_extremes(case.form, case.features, case.others):
        if _takes(case, tried):
            _replace_each(case, case.outputs, "output", tried, locate=True)
        else:
            untried += f"; not tried{tried.where}: the module raises"
    return measured + untried


def check_gradients(case: Case, gradients_of: Function) -> str:
    """No record changes the gradient of another, nor, if they are extreme, what another adds to a sum. (A single
    record's gradient is that of its outputs, which `check_outputs` has tried; a sum comes from one pass of all.)

    Raises:
        Failed: one does.
    """
    measured = check_independent(case, gradients_of, "gradient")
    clipping = clip_half(case)
    with case.freeze_draws():
        for tried in list_extremes(case.form, case.features, case.others):
            if _takes(case, tried):
                _check_sum(case, tried, clipping)
    return measured


def _check_sum(case: Case, tried: TriedRecords, clipping: Clipping) -> None:
    """The clipped sum of all records is that of every second one, and that of the others: each beside records that are
    not finite and count nothing, so that batches are alike and only the order of additions differs."""
    nans = torch.full_like(tried.features, torch.nan)
    batches = tried.features, set_beside(tried.features, nans), set_beside(nans, tried.features)
    whole, even, odd = (sum_at_once(case, features, case.labels, clipping) for features in batches)
    scale = max(float(part.abs().max()) for part in (even, odd)) + 1e-30
    error = float((whole - even - odd).abs().max()) / scale
    if not error <= TOLERANCE:
        raise Failed(f"records change by {error:.1e} of its size what others add to a clipped sum{tried.where}")


def check_independent(case: Case, function: Function, quantity: str, *, locate: bool = False) -> str:
    """Replaces each record in turn, by another and by NaN, then compute it by itself: other rows must not change.

    NaN shows any arithmetic that mixes records, however small the weight. Other values show comparisons and sorting. A
    record by itself shows what depends on the number of records. Layers draw the same numbers each time; if the number
    of records differs, draws are frozen.

    Raises:
        Failed: another row changes.
    """
    usual = TriedRecords(case.features, case.others)
    nans = TriedRecords(case.features, torch.full_like(case.others, torch.nan))
    worst = max(_replace_each(case, function, quantity, tried, locate=locate) for tried in (usual, nans))
    with case.freeze_draws():
        expected = function(case.features, case.labels)
        scale = float(expected.abs().max()) + 1e-30
        for j in range(len(case.labels)):
            single = function(case.features[j : j + 1], case.labels[j : j + 1])
            error = float((single[0] - expected[j]).abs().max()) / scale
            # Another batch size can add up in another order, and land on the other side of a kink.
            if not error <= 10 * ROUNDING and not error <= _kinks(case, function, usual, expected, j):
                raise Failed(f"the {quantity} of record {j} alone differs by {error:.1e} of its size")
    return f"largest relative change {worst:.1e}"


def _takes(case: Case, tried: TriedRecords) -> bool:
    """True if the module takes such records. One that raises on them (attention over no places, say) makes nothing of
    them that could change, and in a run fails there with its place."""
    try:
        case.outputs(tried.features, case.labels)
        case.outputs(tried.others, case.other_labels)
    except Exception:  # of the module, whose code is the user's
        return False
    return True


def _replace_each(case: Case, function: Function, quantity: str, tried: TriedRecords, *, locate: bool) -> float:
    """Returns the largest relative change of a row while others are replaced."""
    expected, worst = function(tried.features, case.labels), 0.0
    for j in range(len(case.labels)):
        untouched = torch.arange(len(case.labels), device=case.labels.device) != j
        features, labels = tried.features.clone(), case.labels.clone()
        features[j], labels[j] = tried.others[j], case.other_labels[j]
        error = relative_change(function(features, labels), expected, untouched)
        if not error <= ROUNDING and not (
            # Some devices add in no fixed order, which counts where large numbers are subtracted.
            tried.where and error <= max(_kinks(case, function, tried, expected, i) for i in untouched.nonzero()[:, 0])
        ):
            place = case.first_difference(tried.features, features, untouched) if locate else ""
            raise Failed(f"record {j} changes another's {quantity} by {error:.1e} of its size{tried.where}{place}")
        worst = max(worst, error)
    return worst


def _kinks(case: Case, function: Function, tried: TriedRecords, expected: Tensor, j: int | Tensor) -> float:
    """Returns how far rounding may move row j over a kink of the network, relative to the largest number.

    At a kink (of a ReLU, of a pool) a gradient jumps: by how much shows in changes of the record of the size of
    rounding, in a batch of the same size.
    """
    if not tried.features.is_floating_point():
        return 0.0
    moved = 0.0
    for number in range(KINK_DRAWS):
        features = move_rows(tried.features, [int(j)], case.seed + number)
        moved = max(moved, relative_change(function(features, case.labels), expected, torch.as_tensor([int(j)])))
    return limit_difference(moved)
