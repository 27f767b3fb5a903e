"""What the probe asks of a mechanism's sums: that they are sums over units, each bounded as the accounting says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from dprecipe.training.engine.clipped_sum import Batch, ClippedSum, Loss
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.probe_case import TOLERANCE, Case, Failed, ProbeTest

SumTests = Callable[[Case], Iterator[ProbeTest]]
"""The tests of one mechanism's sums."""


class ClippedSumOf(Protocol):
    """The engine: see `dprecipe.training.engine.clipped_sum`."""

    def __call__(
        self, model: nn.Module, loss: Loss, batch: Batch, clipping: Clipping, physical_batch: int
    ) -> ClippedSum: ...


def clipping_tests(clipped_sum: ClippedSumOf) -> SumTests:
    """The tests of sums that clip each unit to a norm."""

    def tests(case: Case) -> Iterator[ProbeTest]:
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

    return tests


def _clipped_sum_equal(case: Case, clipped_sum: ClippedSumOf) -> str:
    singles = case.single_gradients
    norms = torch.linalg.vector_norm(singles, dim=1)
    clip = float(norms.median()) or 1.0  # about half of the records are clipped
    expected = ((clip / norms.clamp_min(1e-30)).clamp(max=1.0)[:, None] * singles).sum(0)
    worst = 0.0
    for physical_batch in (len(case.labels), 2):
        found = _value(clipped_sum, case, Batch(case.features, case.labels), clip, physical_batch)
        if found.shape != expected.shape:
            raise Failed(f"shape {list(found.shape)}, expected {list(expected.shape)}")
        error = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
        if not error <= TOLERANCE:
            raise Failed(f"relative error {error:.1e} with physical batches of {physical_batch}")
        worst = max(worst, error)
    return f"largest relative error {worst:.1e}"


def _clipped_sum_edges(case: Case, clipped_sum: ClippedSumOf) -> str:
    empty = _value(clipped_sum, case, Batch(case.features[:0], case.labels[:0]), 1.0, len(case.labels))
    if bool((empty != 0).any()):
        raise Failed("an empty lot gave a sum that is not zero")
    broken = case.features.clone()
    broken[0] = torch.nan
    found = _value(clipped_sum, case, Batch(broken, case.labels), 1.0, len(case.labels))
    without = _value(clipped_sum, case, Batch(case.features[1:], case.labels[1:]), 1.0, len(case.labels))
    scale = float(without.abs().max()) + 1e-30
    if not float((found - without).abs().max()) <= TOLERANCE * scale:
        raise Failed("a record of NaN changed the sum")
    clip = 0.5 * float(torch.linalg.vector_norm(case.single_gradients, dim=1).min()) or 1.0
    one_unit = torch.zeros(len(case.labels), dtype=torch.long, device=case.labels.device)
    value = _value(clipped_sum, case, Batch(case.features, case.labels, one_unit), clip, len(case.labels))
    norm = float(torch.linalg.vector_norm(value.double()))
    if not norm <= clip * (1 + 1e-6):
        raise Failed(f"a unit of {len(case.labels)} records adds {norm / clip:.6f} clip norms")
    return f"zero, zero, {norm / clip:.6f} of the clip norm"


def _value(clipped_sum: ClippedSumOf, case: Case, batch: Batch, clip: float, physical_batch: int) -> Tensor:
    return clipped_sum(case.module, case.loss, batch, Clipping.flat(clip), physical_batch).value
