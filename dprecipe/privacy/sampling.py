"""Which units take part in one event, as events state it and samplers draw it. It never depends on the data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EveryUnit:
    """All of them."""


@dataclass(frozen=True, slots=True)
class PoissonBatch:
    """Each independently with probability `rate`; of more than `cap`, where there is one, a uniformly random subset."""

    rate: float
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class FixedSizeBatch:
    """A uniformly random subset of `batch`, without replacement."""

    batch: int


@dataclass(frozen=True, slots=True)
class Partition:
    """Each in one of `batches` batches, assigned independently: adding a unit changes one batch and moves no other
    unit."""

    batches: int


Sampling = EveryUnit | PoissonBatch | FixedSizeBatch | Partition
