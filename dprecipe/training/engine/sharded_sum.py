"""Clipped sums of a model whose weights, and whose sums, are in shards: no process has either of them whole.

A record is in one process, with all of its gradient, so norms need no other process. What does is each pass through the
model, in which blocks of weights are gathered, and each sum, whose coordinates go to their owners. All processes make
equally many passes: one that has fewer records passes zeros, which add nothing.

Legend: N records of a part, P numbers of all trained parameters, S of them in this process's shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, final

from torch import Tensor, nn

from dprecipe.faults import RunFailed
from dprecipe.training.engine.backward import Loss
from dprecipe.training.engine.bookkeeping import LARGEST, MIN_ROWS, pad_records, weigh_shares
from dprecipe.training.engine.clipped_sum import Batch, BatchPart, ClippedSum, parameters_of
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.rounding import SLACK, Reserve
from dprecipe.training.engine.shares import shares_of
from dprecipe.training.engine.sizes import one_size, size_on
from dprecipe.training.engine.taps import Unplanned


class SumInShards(Protocol):
    """A float64 sum over processes; each process keeps its shard."""

    own: Tensor
    """(S,): this process's shard, complete after `flush`."""

    def add(self, place: slice, values: Tensor) -> None:
        """Adds at these coordinates; every process does, at the same ones in the same order."""

    def flush(self) -> None:
        """Completes `own`."""


class Shards(Protocol):
    """The shards of a model's weights."""

    count: int
    """The number of processes."""
    place: slice
    """This process's coordinates."""

    def gathering(self) -> AbstractContextManager[None]:
        """Inside, passes through the model have its weights; every process makes the same passes."""

    def largest(self, number: int) -> int:
        """Returns the largest of the processes' numbers."""

    def begin_sum(self) -> SumInShards:
        """Returns a sum of zeros."""


@final
@dataclass(frozen=True, slots=True)
class PassSizes:
    """The passes of a batch."""

    records: int
    """The largest number of records in one pass, in every process."""
    rows: int
    """Fewer records are padded to this many."""
    none: BatchPart
    """A part without records."""


def plan_passes(
    model: nn.Module, loss: Loss, example: BatchPart, max_records: int, expected: float, shards: Shards
) -> PassSizes:
    """Plans passes for records like those of `example`; only their shapes and types are looked at. All processes call
    it.

    `max_records`: of one pass; `expected`: of a batch, in this process.

    Raises:
        RunFailed: the model has no plan.
    """
    features, labels = example.features, example.labels
    size = size_on(features.device, expected, max_records)
    try:
        with shards.gathering():
            plan = plan_of(model, loss, features, labels, size, 1)
    except Unplanned as reason:
        raise _refused(reason) from None
    # Which strategies are the fastest is measured, in each process by itself.
    records = -shards.largest(-min(size, plan.max_records))
    rows = records if one_size(features.device) else min(MIN_ROWS, records)
    return PassSizes(records, rows, BatchPart(features[:0], labels[:0]))


def sharded_clipped_sum(
    model: nn.Module, loss: Loss, batch: Batch, clipping: Clipping, passes: PassSizes, shards: Shards
) -> ClippedSum:
    """Computes `clipped_sum` of the records of all processes; `value` (S,) and `bound` are those of this process's
    shard.

    | batch | result |
    |---|---|
    | empty in this process | the others' sum: this process passes zeros |
    | empty in all | exactly zero; the model is not called |

    Guarantees: those of `clipped_sum`, over all processes; each of them has every coordinate of its shard and no other.
    Each record is a unit.

    Raises:
        RunFailed: the model can't be summed by one backward pass.
    """
    total, reserve = shards.begin_sum(), Reserve(batch.gradients, shards.count)
    if min(clipping.thresholds) < 1 / LARGEST or clipping.norm != "l2" or clipping.counted is not None:
        raise _refused("the sum takes more than a clipped L2 norm")
    parts = iter(batch.parts(passes.records))
    for _ in range(shards.largest(math.ceil(batch.gradients / passes.records))):
        part = next(parts, passes.none)
        fresh, block_size = reserve.begin(), reserve.take_block(len(part.labels))
        try:
            with shards.gathering():
                for place, values in _sums(model, loss, part, clipping, passes.rows, block_size, total, fresh=fresh):
                    total.add(place, values)
        except Unplanned as reason:
            raise _refused(reason) from None
    total.flush()
    bound = clipping.bounds(list(parameters_of(model).values()))
    bound = bound[shards.place] if isinstance(bound, Tensor) else bound
    return ClippedSum(total.own, bound * (1 + SLACK), clipping.norm, SLACK)


def _sums(
    model: nn.Module,
    loss: Loss,
    part: BatchPart,
    clipping: Clipping,
    rows: int,
    block_size: int,
    total: SumInShards,
    *,
    fresh: bool,
) -> Iterator[tuple[slice, Tensor]]:
    """Yields the clipped sums of a part, parameter by parameter, each with its coordinates."""
    features, labels = pad_records(part.features, rows), pad_records(part.labels, rows)
    plan = plan_of(model, loss, features, labels)
    shares = shares_of(model, loss, features, labels, plan, groups=clipping.groups)
    by_group = weigh_shares(shares, clipping, len(part.labels), block_size, total.own, fresh=fresh)
    while shares:
        share = shares.pop(0)
        sums = [total.own.new_zeros(place.stop - place.start) for place in share.slices]
        share.strategy.add(sums, by_group[share.group])
        yield from zip(share.slices, sums, strict=True)


def _refused(reason: object) -> RunFailed:
    return RunFailed(
        f"runtime.sharding: parameters needs clipped sums from one backward pass: {reason}",
        "set runtime.sharding to optimizer",
    )
