"""Batches: which units take part in a step. The event that is accounted is the event that draws.

Guarantees: who is drawn depends on the secret stream, the event and the number of units; never on the data.

| case | what is drawn |
|---|---|
| no unit at all, or a rate so small that nobody is drawn | an empty batch, which is released and charged as any other |
| one unit | it is in with the same probability as among many |
| a rate of 1, or more | every unit |
| a Poisson batch with a cap, and more units drawn than that | a uniformly random subset of those drawn, of that size |
| a partition into more batches than there are units | some of the batches are empty |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dprecipe.noise.entropy import Stream
from dprecipe.privacy.events import Event
from dprecipe.privacy.sampling import EveryUnit, FixedSizeBatch, Partition, PoissonBatch

UnitNumbers = NDArray[np.int64]


def draw_batch(event: Event, units: int, stream: Stream) -> Iterator[UnitNumbers]:
    """The batches of one event: one for a sampled or full step, as many as it deals for an epoch.

    Each batch holds increasing unit numbers in [0, units); it may be empty.
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
        case Partition(batches):
            # Every unit is dealt on its own: adding one changes one batch and moves no other unit.
            batch_of = stream.integers(batches, units)
            order = np.argsort(batch_of, kind="stable")
            ends = np.searchsorted(batch_of[order], np.arange(batches + 1))
            for start, end in pairwise(ends):
                yield order[start:end]
        case _:
            raise TypeError(f"an event of kind {event.kind} draws no batch")


def draw_poisson(q: float, units: int, stream: Stream) -> UnitNumbers:
    """Include each of `units` independently with probability `q`.

    The gaps between included units are geometric, so the cost is that of the batch and not of the data set.
    """
    if q >= 1:
        return np.arange(units)
    last, chunks = -1, []
    scale = math.log1p(-q)
    while last < units:
        expected = q * (units - last)
        count = int(expected + 6 * math.sqrt(expected) + 16)
        # A gap beyond the data set ends the batch: cap it before the integer cast can overflow.
        gaps = np.minimum(np.floor(np.log(stream.uniform(count)) / scale), units + 1.0)
        places = last + np.cumsum(gaps.astype(np.int64) + 1)
        chunks.append(places)
        last = int(places[-1])
    included = np.concatenate(chunks)
    return included[included < units]


def draw_subset(count: int, units: int, stream: Stream) -> UnitNumbers:
    """A uniformly random subset of `count` of `units`, 0 <= count <= units, up to a bias of `units` / 2^64.

    Floyd's algorithm: for j = units - count … units - 1 take a number drawn from 0 … j, or j itself where that one is
    taken already. The cost is that of the subset.

    Source: Bentley & Floyd 1987, "A sample of brilliance".
    """
    taken: set[int] = set()
    for last, word in enumerate(stream.words(count).tolist(), units - count):
        drawn = word * (last + 1) >> 64
        taken.add(last if drawn in taken else drawn)
    return np.array(sorted(taken), dtype=np.int64)
