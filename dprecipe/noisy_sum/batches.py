"""Draws batches, the units that take part in a step. The event that is accounted is the event that draws.

*Guarantees*: the batch depends on the secret stream, the event and the number of units; never on the data.

| edge case | batch |
|---|---|
| no units, or no unit sampled | empty; released and charged like any other |
| one unit | included with the same probability as among many |
| a rate of 1 or more | every unit, or every unit of the part |
| a Poisson batch larger than its cap | a uniformly random subset of it, of the size of the cap |
| a dealt batch larger than its cap | the units with the highest of secret random priorities |
| more batches than units, or blocks of them, to deal | some of the batches are empty |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.noise.entropy import Stream
from dprecipe.privacy.events import Event
from dprecipe.privacy.sampling import (
    CyclicPoisson,
    DealtBatches,
    EveryUnit,
    FixedOrder,
    FixedSizeBatch,
    PermutedBatches,
    PoissonBatch,
)

UnitNumbers = NDArray[np.int64]
_CHUNK = 1 << 21
"""Units that are dealt at a time."""


ORDER = 0
"""Number of the stream of an attempt that decides what holds for all of its events; those of events begin at 1."""


def stream_number(event: Event, ticket: int) -> int:
    """Returns the number of the sampling stream of an attempt's event number `ticket`, from 1: its own, or, where units
    keep their places for all passes of the attempt, one for all."""
    return ORDER if isinstance(event.sampling(), FixedOrder) else ticket


@final
class UnitParts:
    """The parts of the units that steps draw from in turn: dealt once, and kept for all of an attempt."""

    def __init__(self, count: int, units: int, stream: Stream) -> None:
        self.count = count
        self._order, self._ends = deal_units(count, units, stream)

    @staticmethod
    def deal(event: Event, units: int, stream: Stream) -> UnitParts | None:
        """Deals the parts that the event draws from, by the stream of number `ORDER`; None if it has none."""
        sampling = event.sampling()
        return UnitParts(sampling.parts, units, stream) if isinstance(sampling, CyclicPoisson) else None

    def draw(self, part: int, rate: float, stream: Stream) -> UnitNumbers:
        """Includes each unit of a part independently with probability `rate`."""
        units = self._order[self._ends[part] : self._ends[part + 1]]
        return units[draw_poisson(rate, len(units), stream)].astype(np.int64)


def draw_batch(event: Event, units: int, stream: Stream, parts: UnitParts | None = None) -> Iterator[UnitNumbers]:
    """Draws the batches of one event: one for a sampled or full step, all batches of the epoch where units are dealt
    or permuted, or of the pass where they keep their order, or one from each part.

    Each batch is (B,) int64, increasing unit numbers in [0, units); it may be empty.

    Args:
        event: what the step releases; its `sampling()` decides the batch.
        units: units in the data set, >= 0.
        stream: the secret stream of this step, see `stream_number`.
        parts: those of the attempt, where the event draws from parts.

    Raises:
        TypeError: the event draws no batch.
    """
    match event.sampling():
        case PoissonBatch(q, None):
            yield draw_poisson(q, units, stream)
        case PoissonBatch(q, int(cap)):
            batch = draw_poisson(q, units, stream)
            yield batch if len(batch) <= cap else batch[draw_subset(cap, len(batch), stream)]
        case FixedSizeBatch(batch):
            yield draw_subset(batch, units, stream)
        case EveryUnit():
            yield np.arange(units)
        case DealtBatches(batches, taken, cap):
            order, ends = deal_units(batches, units, stream)
            priorities = stream.words(0 if cap is None else units)
            for start, end in pairwise(ends[: (taken or batches) + 1]):
                batch = order[start:end].astype(np.int64)
                yield batch if cap is None else keep_highest(batch, priorities, cap)
        case FixedOrder(batches, int(block)):
            order = draw_order(math.ceil(units / block), stream)
            for start, end in pairwise(len(order) * number // batches for number in range(batches + 1)):
                numbers = np.sort(order[start:end])[:, None] * block + np.arange(block)
                yield numbers[numbers < units]
        case FixedOrder(batches):
            order, ends = deal_units(batches, units, stream)
            for start, end in pairwise(ends):
                yield order[start:end].astype(np.int64)
        case CyclicPoisson(count, rate) if parts is not None and parts.count == count:
            for part in range(count):
                yield parts.draw(part, rate, stream)
        case PermutedBatches(batch, batches):
            order = draw_order(units, stream)
            for start in range(0, batch * batches, batch):
                yield np.sort(order[start : start + batch])
        case _:
            raise TypeError(f"an event of kind {event.kind} draws no batch")


def keep_highest(batch: UnitNumbers, priorities: NDArray[np.uint64], count: int) -> UnitNumbers:
    """Returns the `count` units of a batch with the highest priorities, or all; a unit more displaces one at most.

    Of two equal priorities, that of the later unit counts as higher: a bias of at most `units`² / 2^65.
    """
    highest = np.argsort(priorities[batch], kind="stable")[-count:]
    return batch[np.sort(highest)]


def draw_poisson(q: float, units: int, stream: Stream) -> UnitNumbers:
    """Includes each of `units` independently with probability `q`.

    The gaps between included units are geometric, so the cost is proportional to the batch, not to the data set.
    """
    if q >= 1:
        return np.arange(units)
    last, chunks = -1, []
    scale = math.log1p(-q)
    while last < units:
        expected = q * (units - last)
        count = int(expected + 6 * math.sqrt(expected) + 16)
        # A gap beyond the data set ends the batch: cap it before the integer cast can overflow.
        gaps = stream.uniform(count)
        np.log(gaps, out=gaps)
        np.floor(np.divide(gaps, scale, out=gaps), out=gaps)
        np.minimum(gaps, units + 1.0, out=gaps)
        places = np.cumsum(gaps.astype(np.int64) + 1)
        places += last
        chunks.append(places)
        last = int(places[-1])
    included = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return included[: np.searchsorted(included, units)]


def deal_units(
    batches: int, units: int, stream: Stream
) -> tuple[NDArray[np.uint32] | NDArray[np.int64], NDArray[np.int64]]:
    """Returns the units by batch, increasing within each, and the (batches + 1,) ends of the batches.

    Unit u is in batch floor(`batches` w / 2^64), w the word of the stream at place u. A counting sort in chunks takes 8
    bytes a unit, and keeps 4.
    """
    batch_of = np.empty(units, dtype=np.uint32)
    chunks = [slice(start, min(start + _CHUNK, units)) for start in range(0, units, _CHUNK)]
    counts = np.zeros(batches, dtype=np.int64)
    for chunk in chunks:
        batch_of[chunk] = stream.integers(batches, chunk.stop - chunk.start)
        counts += np.bincount(batch_of[chunk], minlength=batches)
    ends = np.concatenate([[0], np.cumsum(counts)])
    order: NDArray[np.uint32] | NDArray[np.int64] = (
        np.empty(units, dtype=np.uint32) if units < 2**32 else np.empty(units, dtype=np.int64)
    )
    free = ends[:-1].copy()
    for chunk in chunks:
        part = batch_of[chunk]
        within = np.argsort(part, kind="stable")
        counts = np.bincount(part, minlength=batches)
        first = np.cumsum(counts) - counts
        sorted_part = part[within]
        order[(free - first)[sorted_part] + np.arange(len(part))] = within + chunk.start
        free += counts
    return order, ends


def draw_order(units: int, stream: Stream) -> UnitNumbers:
    """Returns `units` numbers in a uniformly random order, up to a bias of `units`² / 2^65.

    By sorting words of 64 random bits; where two are equal, all are drawn again.
    """
    while True:
        words = stream.words(units)
        order = np.argsort(words, kind="stable")
        if not (np.diff(words[order]) == 0).any():
            return order


def draw_subset(count: int, units: int, stream: Stream) -> UnitNumbers:
    """Returns a uniformly random subset of `count` of `units`, 0 <= count <= units, up to a bias of `units` / 2^64.

    Floyd's algorithm: for j = units - count … units - 1 add a number drawn from 0 … j, or j itself if that number is
    in the subset already. The cost is proportional to `count`.

    Source: Bentley & Floyd 1987, "A sample of brilliance".
    """
    chosen: set[int] = set()
    for last, word in enumerate(stream.words(count).tolist(), units - count):
        number = word * (last + 1) >> 64
        chosen.add(last if number in chosen else number)
    return np.array(sorted(chosen), dtype=np.int64)
