"""The probe's checks that no record changes what another gets: its output, its loss, its gradient.

No probe can exclude it at values that no synthetic record had; so records are tried as they are usually drawn, many
times as large, and at the ends of what they can be.

Legend: B records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dprecipe.models.form import Form
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.kinks import limit_difference
from dprecipe.training.probe.case import KINK_DRAWS, ROUNDING, TOLERANCE, Case, Failed, move_rows, relative_change
from dprecipe.training.probe.sizes import clip_half, set_beside, sum_at_once

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
