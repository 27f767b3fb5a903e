"""The probe's checks of a mechanism's sums: they are sums over units, each bounded as the accounting says.

Legend: B units, R rows of each, G groups of parameters, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, final

import torch
from torch import Tensor, nn

from dprecipe.training.engine.clipped_sum import BatchPart, ClippedSum, Loss, parameters_of
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.rounding import MAX_DIFFERENCE
from dprecipe.training.engine.unit_rows import MeanLoss, RowwiseModel, is_padding, mark_padding
from dprecipe.training.probe.case import TOLERANCE, Case, Failed, ProbeTest

SumTests = Callable[[Case], Iterator[ProbeTest]]
"""The tests of one mechanism's sums."""
SMALL = 1e-2
"""Errors of a group whose sum is smaller than this, relative to the largest, are compared with this much of it."""


class ClippedSumOf(Protocol):
    """The engine: see `dprecipe.training.engine.clipped_sum`."""

    def __call__(
        self, model: nn.Module, loss: Loss, batch: BatchPart, clipping: Clipping, physical_batch: int
    ) -> ClippedSum: ...


def clipping_tests(clipped_sum: ClippedSumOf, clipping: Clipping | None = None, rows: int | None = None) -> SumTests:
    """Returns the tests of sums that clip each unit as `clipping` does (flat, where it is left out), at thresholds that
    divide the synthetic records; units of `rows` rows, as `engine.unit_rows` sees them, or records by themselves.
    """
    of_plan = Clipping.flat(1.0) if clipping is None else clipping

    def tests(case: Case) -> Iterator[ProbeTest]:
        units = Units(case, of_plan, rows)
        yield (
            "clipped_sum",
            "the clipped sum equals that of a loop over single records",
            lambda: _clipped_sum_equal(units, clipped_sum),
        )
        yield (
            "clipped_sum_edges",
            "an empty batch gives zero, a non-finite record adds zero, and a unit stays within the clip norm",
            lambda: _clipped_sum_edges(units, clipped_sum),
        )

    return tests


@final
@dataclass(frozen=True)
class Units:
    """The records of a case as the units of a sum, and a clipping of theirs."""

    case: Case
    of_plan: Clipping
    rows: int | None

    @cached_property
    def model(self) -> nn.Module:
        return self.case.module if self.rows is None else RowwiseModel(self.case.module)

    @property
    def loss(self) -> Loss:
        return self.case.loss if self.rows is None else MeanLoss(self.case.loss)

    @cached_property
    def batch(self) -> BatchPart:
        """The records; or the records and others that follow them as rows; one of them is filled up."""
        case = self.case
        if self.rows is None:
            return BatchPart(case.features, case.labels)
        both = torch.cat([case.features, case.others])
        labels = torch.cat([case.labels, case.other_labels])
        count = len(case.labels)
        at_BR = (torch.arange(count)[:, None] + (count + 1) * torch.arange(self.rows)) % (2 * count)
        padded_BR = torch.zeros(at_BR.shape, dtype=torch.bool, device=labels.device)
        padded_BR[0, 1:] = True
        return BatchPart(both[at_BR], mark_padding(labels[at_BR], padded_BR))

    @cached_property
    def gradients(self) -> Tensor:
        """(B, P): the mean of each unit's gradients, which are computed one after the other.

        Raises:
            Failed: one is not finite.
        """
        if self.rows is None:
            return self.case.single_gradients
        features, labels = self.batch.features, self.batch.labels
        means = []
        for features_R, labels_R in zip(features, labels, strict=True):
            real_R = ~is_padding(labels_R)
            means.append(self.case.gradients_of(features_R[real_R], labels_R[real_R]).mean(0))
        return torch.stack(means)

    @cached_property
    def jumps(self) -> Tensor:
        """(B, P): see `Case.largest_jumps`."""
        if self.rows is None:
            return self.case.jumps
        return self.case.largest_jumps(lambda case: replace(self, case=case).gradients)

    @cached_property
    def norms(self) -> Tensor:
        """(G, B): of the gradients of each group, added in double precision: in single, millions of squares lose more
        than the tolerance."""
        order = 1 if self.of_plan.norm == "l1" else 2
        by_group = (self.gradients[:, at] for at in self.groups)
        norms = [torch.linalg.vector_norm(rows, ord=order, dim=1, dtype=torch.float64) for rows in by_group]
        return torch.stack(norms).to(self.gradients.dtype)

    @cached_property
    def groups(self) -> list[Tensor]:
        """Coordinates of each group's parameters."""
        sizes = [part.stop - part.start for _, part in self.case.slices()]
        of_parameter = self.of_plan.groups or [0] * len(sizes)
        of_each = torch.tensor(of_parameter).repeat_interleave(torch.tensor(sizes))
        return [(of_each == group).nonzero()[:, 0] for group in range(len(self.of_plan.thresholds))]

    def clipping(self, thresholds: Tensor) -> Clipping:
        return replace(self.of_plan, thresholds=tuple(thresholds.tolist()))

    def dividing(self) -> Clipping:
        """Returns a clipping whose thresholds divide units: each lies in the widest gap of its group's norms."""
        norms_GB = self.norms.sort(1).values
        gaps_GB = norms_GB.diff(dim=1)
        at_G1 = gaps_GB.argmax(1, keepdim=True)
        thresholds_G = (norms_GB.gather(1, at_G1) + norms_GB.gather(1, at_G1 + 1))[:, 0] / 2
        return self.clipping(_positive(thresholds_G))

    def narrow(self) -> Clipping:
        """Returns a clipping with thresholds that every unit passes."""
        return self.clipping(_positive(0.5 * self.norms.amin(1)))

    def weights(self, clipping: Clipping) -> Tensor:
        """(G, B): by what the clipping multiplies each unit's gradient."""
        thresholds_G1 = self.norms.new_tensor(clipping.thresholds)[:, None]
        if clipping.stability is None:
            return torch.minimum(torch.ones_like(self.norms), thresholds_G1 / self.norms.clamp_min(1e-30))
        return thresholds_G1 / (self.norms + clipping.stability)

    def scales(self, clipping: Clipping) -> list[float]:
        """Returns the largest number that a unit adds in each group: in the sum, units can cancel but for rounding."""
        return [
            max(float(weight * row[at].abs().max()) for weight, row in zip(weights_B, self.gradients, strict=True))
            for at, weights_B in zip(self.groups, self.weights(clipping), strict=True)
        ]

    def expected(self, clipping: Clipping) -> Tensor:
        """Returns the sum over units, one after the other."""
        total = torch.zeros_like(self.gradients[0])
        for at, weights_B in zip(self.groups, self.weights(clipping), strict=True):
            total[at] = weights_B @ self.gradients[:, at]
        if clipping.counted is None:
            return total
        shrunk = int((self.norms[0] > clipping.thresholds[0]).sum())
        return torch.cat([total, total.new_tensor([len(self.norms[0]) / 2 - shrunk])])


def _positive(thresholds: Tensor) -> Tensor:
    return torch.where(thresholds > 0, thresholds, 1.0).double()


def _clipped_sum_equal(units: Units, clipped_sum: ClippedSumOf) -> str:
    clipping = units.dividing()
    expected, scales = units.expected(clipping), units.scales(clipping)
    count = len(units.batch.labels)
    worst = 0.0
    for physical_batch in (count * (units.rows or 1), 2 * (units.rows or 1)):
        result = clipped_sum(units.model, units.loss, units.batch, clipping, physical_batch).value
        if result.shape != expected.shape:
            raise Failed(f"shape {list(result.shape)}, expected {list(expected.shape)}")
        if clipping.counted is not None and not float(result[-1]) == float(expected[-1]):
            raise Failed(f"{float(result[-1]) + count / 2:g} of {count} units are within the clip norm")
        floor = SMALL * max(scales) + 1e-30
        for group, (at, scale) in enumerate(zip(units.groups, scales, strict=True)):
            size = max(scale, float(expected[at].abs().max()), floor)
            error = float((result[at] - expected[at]).abs().max()) / size
            if not error <= TOLERANCE:
                jump = float((units.weights(clipping)[group] @ units.jumps[:, at]).max())
                error -= min(jump / size, MAX_DIFFERENCE)  # NaN stays NaN, and fails
            if not error <= TOLERANCE:
                raise Failed(f"relative error {error:.1e} with physical batches of {physical_batch}")
            worst = max(worst, error)
    return f"largest relative error {worst:.1e}"


def _clipped_sum_edges(units: Units, clipped_sum: ClippedSumOf) -> str:
    clipping, batch, parameters = units.narrow(), units.batch, units.gradients.shape[1]
    bounds = torch.as_tensor(clipping.bounds(list(parameters_of(units.model).values())))

    def bounded(part: BatchPart) -> ClippedSum:
        result = clipped_sum(units.model, units.loss, part, clipping, len(batch.labels) * (units.rows or 1))
        if result.norm != clipping.norm or not bool((torch.as_tensor(result.bound) >= bounds).all()):
            raise Failed("the sum says a smaller bound than that of its clipping")
        return result

    def summed(part: BatchPart) -> Tensor:
        return bounded(part).value

    def filling(part: BatchPart) -> float:
        """Returns the share of its bound that a sum of one unit fills."""
        result, order = bounded(part), 1 if clipping.norm == "l1" else 2
        return float(torch.linalg.vector_norm(result.value.double() / result.bound, ord=order))

    if bool((summed(BatchPart(batch.features[:0], batch.labels[:0])) != 0).any()):
        raise Failed("an empty batch gave a sum that is not zero")
    broken = batch.features.clone()
    broken[0] = torch.nan
    result = summed(BatchPart(broken, batch.labels))[:parameters]
    without = summed(BatchPart(batch.features[1:], batch.labels[1:]))[:parameters]
    scale = float(without.abs().max()) + 1e-30
    if not float((result - without).abs().max()) <= TOLERANCE * scale:
        raise Failed("a record of NaN changed the sum")
    singles = [BatchPart(batch.features[i : i + 1], batch.labels[i : i + 1]) for i in range(len(batch.labels))]
    worst = max(filling(single) for single in singles)
    if not worst <= 1 + 1e-6:
        raise Failed(f"a unit adds {worst:.6f} clip norms")
    if units.rows is None:
        joined = BatchPart(batch.features, batch.labels, torch.zeros_like(batch.labels, dtype=torch.int64))
    else:
        joined = BatchPart(batch.features.flatten(0, 1)[None], batch.labels.flatten()[None])
    whole = filling(joined)
    if not whole <= 1 + 1e-6:
        raise Failed(f"a unit of {len(batch.labels)} records adds {whole:.6f} clip norms")
    return f"zero, zero, {max(worst, whole):.6f} of the clip norm"
