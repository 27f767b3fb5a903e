"""Clipped sums of per-unit gradients, and the value that carries how far one unit can move it.

Legend: N records in a physical batch, U units among them, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, final

import torch
from torch import Tensor, nn

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.training.engine.bookkeeping import ISOLATED, MIN_ROWS, add_clipped, describe_plan, pad_records
from dprecipe.training.engine.clipping import Clipping, Norm
from dprecipe.training.engine.compiled import Passes
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.rounding import SLACK, Reserve
from dprecipe.training.engine.single import explain_loop
from dprecipe.training.engine.single import per_record_gradients as per_record_gradients
from dprecipe.training.engine.sizes import one_size, size_for, widest_type
from dprecipe.training.engine.standardised import BatchWeights
from dprecipe.training.engine.taps import Unplanned, trained_of

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (N, C), labels (N,)) -> losses (N,), one for each record."""

# Norms are raised by more than float64 can round them down.
ROUNDING = 1.0 + 2.0**-30
# Numbers that are widened to float64 at a time on a CPU: 2 MiB of them.
WIDENED_NUMBERS = 1 << 18


@final
@dataclass(frozen=True, slots=True)
class ClippedSum:
    """A sum over units, each clipped. Noise accepts nothing else.

    Formal guarantee: see `clipped_sum`, which computes it. Other code that builds one must state a bound that holds for
    every unit.

    | batch | `value` |
    |---|---|
    | empty | zeros |
    | one unit | its own clipped gradient: at most `bound` in `norm` |
    | a unit whose gradient is not finite | the sum of the others: that unit adds zeros |

    `value`: (P,) float64; a mechanism may add coordinates after those of the parameters. Adding or removing one unit
    moves value / `bound` by at most 1 in `norm`; `bound` is a number, or one for each coordinate, (P,).
    """

    value: Tensor
    bound: float | Tensor
    norm: Norm = "l2"
    reserve: float = 0.0
    """The share that `bound` has on top of what clipping allows, for rounding."""

    def sensitivity(self, neighbouring: Neighbouring) -> float | Tensor:
        """Returns the distance that one neighbour moves the sum; a replaced unit is one removed and one added."""
        return 2 * self.bound if neighbouring is Neighbouring.REPLACE_ONE else self.bound


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Records in memory. `units` (N,) numbers the units 0 … U-1 in order; `None`: each record is its own."""

    features: Tensor
    labels: Tensor
    units: Tensor | None = None

    @property
    def gradients(self) -> int:
        """The number of units."""
        return count_of(self.units, len(self.labels))

    def parts(self, size: int) -> Iterator[BatchPart]:
        """Yields parts of at most `size` records; a unit is never split, so one larger than that is a part of its
        own."""
        for indices, units in physical_slices(self.units, len(self.labels), size):
            yield BatchPart(self.features[indices], self.labels[indices], units)


class Batch(Protocol):
    """A batch that loads its records in parts."""

    @property
    def gradients(self) -> int:
        """The number of units: gradients to be clipped and added up."""

    def parts(self, size: int) -> Iterator[BatchPart]:
        """Yields parts as `BatchPart.parts` does."""


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns the trained parameters by name, in the order of every flat vector of this package."""
    return {name: parameter.detach() for name, parameter in trained_of(model).items()}


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    batch: BatchPart | Batch,
    clipping: Clipping,
    physical_batch: int,
    passes: Passes | None = None,
    processes: int = 1,
) -> ClippedSum:
    """Clips each unit's gradient and adds them up, `physical_batch` records at a time, or as many as `passes` take.

    Each of several `processes` does so for its part of a batch; they share the rounding allowed in single precision.

    A unit's gradient is the mean of its records' gradients. A unit with a non-finite gradient contributes zero.
    If each record is a unit, the sum comes from one backward pass (`bookkeeping`), if the model allows it.

    | batch | result |
    |---|---|
    | empty | exactly zero; the model is not called |
    | one unit | its own clipped gradient |
    | a unit whose gradient is not finite | the sum of the others |
    | a unit larger than `physical_batch` | the same sum; the unit is held in memory as a whole, never split |

    Guarantees: adding or removing one unit moves the result by at most its bound, given the gradients of the others.
    The bound is that of `clipping`, plus the share `SLACK` of it: for sums in single precision, or, if all sums are in
    double precision, for the rounding of the others' gradients, which may change with the batch. Memory is that of one
    physical batch.
    Source: Abadi et al. 2016, Algorithm 1 (clipping); dprecipe docs/project/pitfalls.md T10, T11.
    """
    total = _zero(model, clipping)
    reserve, min_rows, weights = Reserve(batch.gradients, processes), min(MIN_ROWS, physical_batch), BatchWeights()

    def add_rows(some: BatchPart, min_rows: int) -> None:
        _add_clipped_rows(total, model, _by_unit(model, loss, some, min_rows).to(total.device), clipping)

    for part in batch.parts(physical_batch if passes is None else min(physical_batch, passes.max_rows)):
        if part.units is not None or clipping.norm != "l2":
            size = _part_size(part, physical_batch, passes)
            for some in [part] if size is None else part.parts(size):
                add_rows(some, min_rows if size is None else size)
            continue
        source, size = (
            (None, None) if passes is None else passes.choose_source(part.features, part.labels, physical_batch)
        )
        rows = min_rows if size is None else size * part.labels[0].numel()
        for some in [part] if size is None else part.parts(size):
            try:
                add_clipped(model, loss, some.features, some.labels, clipping, total, reserve, source, rows, weights)
            except Unplanned:  # `bookkeeping.describe_plan` says why
                add_rows(some, rows)
    result = _build_sum(model, clipping, total)
    return replace(result, bound=result.bound * (1 + SLACK), reserve=SLACK)


def add_sparse_units(clipped: ClippedSum, places_GU: Tensor, values_GU: Tensor, clipping: Clipping) -> ClippedSum:
    """Adds units to a sum, in place, each with a gradient that is zero but for one coordinate in each group of
    parameters: `values_GU` (G, U) float64 at `places_GU` of the flat gradient.

    Guarantees: those of `clipped_sum`, with the same weights, in float64: this is its special case for such gradients.
    """
    total = clipped.value
    places_GU, values_GU = places_GU.to(total.device), values_GU.to(total)
    norms_GU = values_GU.abs() * ROUNDING
    weights_GU = clipping.weights(norms_GU)
    total.index_add_(0, places_GU.reshape(-1), (weights_GU * torch.nan_to_num(values_GU)).reshape(-1))
    if clipping.counted is not None:
        total[-1:] += clipping.bits(norms_GU)
    return clipped


def _part_size(part: BatchPart, physical_batch: int, passes: Passes | None) -> int | None:
    """Returns the number of rows in a part whose gradients are taken one by one; `None`: any number."""
    if passes is None or not one_size(part.features.device):
        return None
    return size_for(passes.parts.expected, physical_batch)


def clipped_sum_of_rows(
    model: nn.Module, loss: Loss, batch: BatchPart | Batch, clipping: Clipping, physical_batch: int
) -> ClippedSum:
    """Computes `clipped_sum`, always from the gradients of single units: the reference."""
    total = _zero(model, clipping)
    for grads_UP in per_unit_gradients(model, loss, batch, physical_batch):
        _add_clipped_rows(total, model, grads_UP.to(total.device), clipping)
    return _build_sum(model, clipping, total)


def find_fallbacks(
    model: nn.Module, loss: Loss, batch: BatchPart, clipping: Clipping, named_model: nn.Module
) -> tuple[str, ...]:
    """Returns the parameters that fall back to gradients of single records, and why: one line for each reason. Only
    shapes and
    types of `batch` are read; `named_model` gives the parameters their names.
    """
    if clipping.norm == "l1":
        return ("all gradients are those of single records: L1 norms need them whole",)
    try:
        plan_of(model, loss, batch.features, batch.labels)
    except Unplanned as reason:
        return (f"all gradients are those of single records{_describe_loop(model, loss, batch)}: {reason}",)
    names = {id(parameter): name for name, parameter in named_model.named_parameters()}
    isolated: dict[str, list[str]] = {}
    for name, strategy in describe_plan(model, loss, batch.features, batch.labels).items():
        if strategy.endswith(ISOLATED):
            kind = type(model.get_submodule(name.rpartition(".")[0])).__name__
            isolated.setdefault(kind, []).append(names[id(model.get_parameter(name))])
    return tuple(
        f"gradients of single records for {', '.join(parameters)}: {kind} is differentiated by itself"
        for kind, parameters in isolated.items()
    )


def _describe_loop(model: nn.Module, loss: Loss, batch: BatchPart) -> str:
    reason = explain_loop(model, loss, batch.features, batch.labels)
    return f", one after the other, which is slow ({reason})" if reason else ""


def _build_sum(model: nn.Module, clipping: Clipping, total: Tensor) -> ClippedSum:
    return ClippedSum(total, clipping.bounds(list(parameters_of(model).values())), clipping.norm)


def per_unit_gradients(model: nn.Module, loss: Loss, batch: BatchPart | Batch, physical_batch: int) -> Iterator[Tensor]:
    """Yields (U, P) for each physical batch in turn: the mean of the gradients of each unit's records. Where parts have
    one size, it is `physical_batch`."""
    for part in batch.parts(physical_batch):
        min_rows = physical_batch if one_size(part.features.device) else min(MIN_ROWS, physical_batch)
        yield _by_unit(model, loss, part, min_rows)


def _by_unit(model: nn.Module, loss: Loss, part: BatchPart, min_rows: int) -> Tensor:
    """`min_rows`: fewer rows are padded to this many, for the reason given at `bookkeeping.MIN_ROWS`."""
    count, size = len(part.labels), math.ceil(min_rows / part.labels[0].numel())
    features, labels = part.features, part.labels
    if not explain_loop(model, loss, features, labels):
        features, labels = pad_records(features, size), pad_records(labels, size)
    grads_NP = per_record_gradients(model, loss, features, labels)[:count]
    return grads_NP if part.units is None else mean_by_unit(grads_NP, part.units)


def _zero(model: nn.Module, clipping: Clipping) -> Tensor:
    parameters = parameters_of(model).values()
    device = widest_type(next(iter(parameters)).device)
    size = sum(p.numel() for p in parameters) + (clipping.counted is not None)
    return torch.zeros(size, dtype=torch.float64, device=device)


def _add_clipped_rows(total: Tensor, model: nn.Module, grads_UP: Tensor, clipping: Clipping) -> None:
    """Clips each row and adds it to `total`, in float64: in single precision a row could exceed the bound.

    A few rows are widened at a time, so that norms and sum are computed while the rows are in the cache.
    """
    slices = group_slices(model, clipping)
    widened = WIDENED_NUMBERS if total.device.type == "cpu" else WIDENED_NUMBERS << 8
    for rows_UP in torch.split(grads_UP, max(1, widened // max(1, len(total)))):
        rows_UP = rows_UP.double()
        order = 1 if clipping.norm == "l1" else 2
        norms_GU = torch.stack([_norms_of_parts(rows_UP, parts, order) for parts in slices]) * ROUNDING
        if not bool(torch.isfinite(norms_GU).all()):
            rows_UP = torch.where(torch.isfinite(norms_GU).all(0)[:, None], rows_UP, 0.0)
        weights_GU = clipping.weights(norms_GU)
        for parts, weights_U in zip(slices, weights_GU, strict=True):
            for part in parts:
                total[part] += weights_U @ rows_UP[:, part]
        if clipping.counted is not None:
            total[-1:] += clipping.bits(norms_GU)


def group_slices(model: nn.Module, clipping: Clipping) -> list[list[slice]]:
    """Returns, for each group, the slices of its parameters in a flat gradient."""
    sizes = [p.numel() for p in parameters_of(model).values()]
    if clipping.groups is None:
        return [[slice(0, sum(sizes))]]
    results: list[list[slice]] = [[] for _ in clipping.thresholds]
    start = 0
    for group, size in zip(clipping.groups, sizes, strict=True):
        results[group].append(slice(start, start + size))
        start += size
    return results


def _norms_of_parts(rows_UP: Tensor, parts: list[slice], order: int) -> Tensor:
    norms = [torch.linalg.vector_norm(rows_UP[:, part], ord=order, dim=1) for part in parts]
    whole: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), ord=order, dim=0)
    return whole


def count_of(units: Tensor | None, records: int) -> int:
    """Returns the number of units among `records` records; `units` (N,) numbers the unit of each, None: each is its
    own."""
    if units is None:
        return records
    return int(units.max()) + 1 if len(units) else 0


def physical_slices(units: Tensor | None, count: int, size: int) -> Iterator[tuple[slice, Tensor | None]]:
    """Yields slices of at most `size` of `count` records, each with its units renumbered from 0; no unit is split."""
    if not count:
        return
    if units is None:
        for start in range(0, count, size):
            yield slice(start, min(start + size, count)), None
        return
    # The places at which units end, so that each unit lies in one slice.
    ends = torch.cumsum(torch.bincount(units), 0).tolist()
    start = 0
    for end, following in zip(ends, [*ends[1:], None], strict=True):
        if following is None or following - start > size:
            yield slice(start, end), units[start:end] - units[start]
            start = end


def mean_by_unit(grads_NP: Tensor, units: Tensor) -> Tensor:
    """Returns (U, P): the mean of the rows of each unit."""
    counts_U = torch.bincount(units)
    sums_UP = grads_NP.new_zeros(len(counts_U), grads_NP.shape[1]).index_add_(0, units, grads_NP)
    return sums_UP / counts_U[:, None]
