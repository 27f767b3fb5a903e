"""Rules for the units that take part in one event, as events state and samplers draw them; independent of the data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EveryUnit:
    """The batch of all units."""


@dataclass(frozen=True, slots=True)
class PoissonBatch:
    """A batch that each unit joins independently with probability `rate`; if more than `cap` join, and there is a cap,
    a uniformly random subset of them."""

    rate: float
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class FixedSizeBatch:
    """A batch that is a uniformly random subset of `batch` units, drawn without replacement."""

    batch: int


@dataclass(frozen=True, slots=True)
class DealtBatches:
    """All units, each in one of `batches` batches, chosen uniformly and independently: adding a unit changes one batch
    and moves no other unit. Only the first `taken` of them take part; all, if it is None. If a batch has more than
    `cap` units, and there is a cap, those with the highest random priorities stay: a unit more displaces one at most.
    """

    batches: int
    taken: int | None = None
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class PermutedBatches:
    """All units in a uniformly random order, cut into `batches` batches of `batch` units; the rest is in none."""

    batch: int
    batches: int


@dataclass(frozen=True, slots=True)
class FixedOrder:
    """All units, each in one of `batches` batches, which it keeps in all passes of an attempt. Which one depends on no
    record and no output. Adding a unit moves no other one, unless units are together in blocks of `block` consecutive
    ones, in a random order that is cut into the batches: then their number has to be the same on both sides."""

    batches: int
    block: int | None = None


@dataclass(frozen=True, slots=True)
class CyclicPoisson:
    """One batch from each of `parts` parts, in turn: its units join independently with probability `rate`. Each unit is
    in one part, chosen uniformly and independently of all else, which it keeps in all cycles of an attempt."""

    parts: int
    rate: float


Sampling = EveryUnit | PoissonBatch | FixedSizeBatch | DealtBatches | PermutedBatches | FixedOrder | CyclicPoisson
