"""The `sampling` block: the choice of units for each step, its meaning for the length of a run, and back from events.

Shared by the mechanisms that step on noisy sums. A schedule is cut into pieces of one value each, so that an account
charges for exactly the values that a run uses: each piece has the value of the schedule at its first step. The
schedule's last step begins the last piece, whose value lasts to the end of the run. `UniformSteps` is a run whose steps
are all equal, in which `dprecipe noise` compares other noise. At the end are functions that read the steps of an
event: noise, batches and count are in the event and stored nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal, Protocol, runtime_checkable

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Auto, Block, PositiveInt, Schedule, word_form
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.sampling import (
    CyclicPoisson,
    DealtBatches,
    EveryUnit,
    FixedOrder,
    FixedSizeBatch,
    PermutedBatches,
    PoissonBatch,
)


def piece_starts(schedule: int, run: int, max_pieces: int) -> set[int]:
    """Returns the first steps of the pieces of a schedule of `schedule` steps in a run of `run` steps: at most
    `max_pieces`, evenly over the part of the schedule that the run reaches, and one at the schedule's last step."""
    last = schedule - 1
    end = min(last, run)
    count = min(end, max_pieces)
    return {end * piece // count for piece in range(count)} | {last}


def split_steps(cuts: Iterable[int], steps: int) -> Iterator[tuple[int, int]]:
    """Yields (first step, first step of the next piece) for a run of `steps` steps that is cut at 0 and at `cuts`."""
    yield from pairwise(sorted({0, *(cut for cut in cuts if 0 < cut < steps), steps}))


class PoissonSampling(Block):
    """Each unit joins a batch independently, so that sampling amplifies privacy."""

    scheme: Literal["poisson"]
    batch_size: PositiveInt = Field(description="expected size of a batch, in units")


class FullBatchSampling(Block):
    """Every unit takes part in every step."""

    scheme: Literal["full_batch"]


class DealtSampling(Block):
    """Each epoch deals every unit to one of its batches, independently of all others."""

    scheme: Literal["dealt"]
    batch_size: PositiveInt = Field(description="expected size of a batch, in units")


class CappedDealtSampling(DealtSampling):
    """Each epoch deals every unit to one of its batches; of a batch that is too large, a random part takes part."""

    batch_limit: PositiveInt | None = Field(None, description="units that a batch has at most; null: no limit")


class PermutedSampling(Block):
    """Each epoch cuts a new random order of the units into batches of one size; the rest of the order takes no part."""

    scheme: Literal["permuted"]
    batch_size: PositiveInt = Field(description="size of a batch, in units")


class FixedOrderSampling(Block):
    """Each unit is dealt to one step of the pass, once for all passes of an attempt."""

    scheme: Literal["fixed_order"]
    batch_size: PositiveInt = Field(description="expected size of a batch, in units")
    block_size: PositiveInt | None = Field(
        None, description="consecutive units that stay together, where random access is dear; null: each by itself"
    )


class CyclicPoissonSampling(Block):
    """Each unit is in one of as many parts as noise has bands, for all of an attempt; steps draw from parts in turn."""

    scheme: Literal["cyclic_poisson"]
    batch_size: PositiveInt = Field(description="expected size of a batch, in units")


class BatchSchedule(Schedule):
    """An expected batch size that moves from one value to another, then stays."""

    from_: Annotated[float, Field(ge=1, alias="from", description="at the first step")]
    to: Annotated[float, Field(ge=1, description="at the last step of the schedule")]


class MovingPoissonSampling(Block):
    """Each unit joins a batch independently, at a rate that may move."""

    scheme: Literal["poisson"]
    batch_size: Annotated[
        Annotated[PositiveInt, Tag("number")] | Annotated[BatchSchedule, Tag("block")],
        Discriminator(lambda value: "block" if word_form(value) == "block" else "number"),
    ] = Field(description="expected size of a batch, in units: a number or a schedule")


class TruncatedPoissonSampling(Block):
    """As `poisson`, but units are dropped at random from a batch that is too large."""

    scheme: Literal["truncated_poisson"]
    batch_size: PositiveInt = Field(description="expected size of a batch before it is cut, in units")
    max_batch_size: PositiveInt = Field(description="units that a batch has at most")


class FixedSizeSampling(Block):
    """Each batch is a uniformly random subset of one size, drawn without replacement."""

    scheme: Literal["fixed_size"]
    batch_size: PositiveInt = Field(description="size of a batch, in units")


Sampling = Annotated[PoissonSampling | FullBatchSampling | DealtSampling, Field(discriminator="scheme")]
"""Sampling of mechanisms whose batches have a constant expected size."""
BatchSampling = Annotated[
    MovingPoissonSampling
    | TruncatedPoissonSampling
    | FixedSizeSampling
    | FullBatchSampling
    | CappedDealtSampling
    | PermutedSampling,
    Field(discriminator="scheme"),
]
"""Sampling of DP-SGD, whose account covers more schemes."""


def find_cap(sampling: Block) -> tuple[str, int] | None:
    """Returns the key and the value of the largest size of a batch; None where there is none."""
    match sampling:
        case TruncatedPoissonSampling(max_batch_size=cap):
            return "max_batch_size", cap
        case CappedDealtSampling(batch_limit=int(cap)):
            return "batch_limit", cap
    return None


@dataclass(frozen=True, slots=True)
class Pace:
    """A sampling scheme as arithmetic: the steps of an event, and the steps of a pass over the data."""

    steps_per_event: int
    batches: tuple[tuple[int, Fraction], ...]
    """(event, expected size of a batch from it on), from event 0."""
    size: int
    sampled: bool
    """True if units join each batch at a sampling rate."""

    @staticmethod
    def of(
        sampling: BatchSampling | Sampling | FixedOrderSampling, size: int, events: int = 1, pieces: int = 1
    ) -> Pace:
        """Returns the pace over `size` units; a schedule of batches moves over `events` events, in about `pieces`
        pieces."""
        match sampling:
            case MovingPoissonSampling(batch_size=BatchSchedule() as moving):
                first = sorted(piece_starts(events, events, pieces))
                return Pace(1, tuple((at, Fraction(moving.at(at, events))) for at in first), size, True)
            case (
                PoissonSampling(batch_size=int(batch))
                | MovingPoissonSampling(batch_size=int(batch))
                | TruncatedPoissonSampling(batch_size=batch)
                | FixedSizeSampling(batch_size=batch)
            ):
                return Pace(1, ((0, Fraction(batch)),), size, True)
            case FullBatchSampling():
                return Pace(1, ((0, Fraction(size)),), size, False)
            case DealtSampling(batch_size=batch) | FixedOrderSampling(batch_size=batch):
                count = math.ceil(Fraction(size, batch))
                return Pace(count, ((0, Fraction(size, count)),), size, False)
            case PermutedSampling(batch_size=batch):
                count = max(1, (size - 1) // batch)  # with one unit less, all of these batches are full too
                return Pace(count, ((0, Fraction(batch)),), size, False)
        raise TypeError(f"no batches are drawn by {sampling!r}")

    @property
    def expected_batch(self) -> float:
        """Expected batch size of the first step."""
        return float(self.batches[0][1])

    @property
    def sampling_rate(self) -> float | None:
        """Sampling rate of the first step; `None`: no unit joins at a rate."""
        return float(self.batches[0][1] / self.size) if self.sampled else None

    def batch(self, event: int) -> float:
        """Returns the expected batch size of an event."""
        return float(next(batch for first, batch in reversed(self.batches) if first <= event))

    def events_for(self, epochs: float | None, steps: int | None) -> int:
        """Returns the number of events that cover the given length, rounded up."""
        if steps is None:
            # Exact decimals: 0.1 epochs of 60,000 records are 6,000 records, whatever binary makes of 0.1.
            passes = Fraction(str(epochs))
            if not self.sampled:  # an event is an epoch
                return math.ceil(passes)
            steps = self._steps_for(passes)
        return math.ceil(Fraction(steps, self.steps_per_event))

    def last_steps(self, epochs: float | None, steps: int | None) -> int:
        """Returns the steps of the last event that covers the given length: fewer than the others', where an epoch is
        an event and ends within the length asked for."""
        if self.sampled:
            return 1
        if steps is None:
            steps = math.ceil(Fraction(str(epochs)) * self.steps_per_event)
        return (steps - 1) % self.steps_per_event + 1

    def passes(self, events: int) -> Fraction:
        """Returns the expected number of passes over the data in `events` events; an epoch counts as one, also where
        some of the units take no part in it."""
        if not self.sampled:
            return Fraction(events)
        units, ends = Fraction(0), [first for first, _ in self.batches[1:]] + [math.inf]
        for (first, batch), end in zip(self.batches, ends, strict=True):
            units += batch * max(0, int(min(events, end)) - first)
        return units * self.steps_per_event / self.size

    def epochs_of(self, events: int) -> float:
        """Returns the passes of `events` events as a number of epochs that `events_for` makes as many events of."""
        epochs = float(self.passes(events))
        while self.events_for(epochs, None) > events:  # a double above the exact number of passes
            epochs = math.nextafter(epochs, 0.0)
        return epochs

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in the first pass."""
        return self._steps_for(Fraction(1)) if self.sampled else self.steps_per_event

    def _steps_for(self, passes: Fraction) -> int:
        left = passes * self.size
        for (first, batch), (end, _) in pairwise(self.batches):
            if left <= batch * (end - first):
                return first + math.ceil(left / batch)
            left -= batch * (end - first)
        return self.batches[-1][0] + math.ceil(left / self.batches[-1][1])


def count_batches(schedule: BatchSchedule, size: int, epochs: float) -> int:
    """Counts the steps in which batches that follow a schedule make `epochs` passes over `size` units; for both kinds
    of schedule, the mean is that of their ends."""
    mean = (Fraction(schedule.from_) + Fraction(schedule.to)) / 2
    return max(1, math.ceil(Fraction(str(epochs)) * size / mean))


@dataclass(frozen=True, slots=True)
class UniformSteps:
    """A run in which each step adds Gaussian noise of one multiplier to one sum of clipped gradients."""

    norm: float
    """Largest L2 distance that one unit can move the sum."""
    multiplier: float | Auto
    sampling: Block


@runtime_checkable
class MayHaveUniformSteps(Protocol):
    """A `mechanism` block with settings under which all steps are equal."""

    def uniform_steps(self) -> UniformSteps | None:
        """Returns its steps; None if they are not equal, or their noise is not Gaussian."""


UNSAMPLED = ("full_batch", "dealt", "permuted", "fixed_order", "cyclic_poisson")
"""Schemes without one sampling rate for all units."""


def noise_multiplier(event: Event) -> float:
    """Returns the scale of an event's noise over its sensitivity.

    Raises:
        TypeError: the event is not a noisy sum.
    """
    if event.sampling() is None:
        raise TypeError(f"an event of kind {event.kind} is not a noisy sum")
    (multiplier,) = event.multipliers
    return multiplier


def count_steps(charges: Iterable[Charge]) -> int:
    """Counts the steps that these events take: one each, or all batches of an epoch where an event is one."""
    return sum(charge.count * charge.event.steps for charge in charges)


def sampling_rate(event: Event, scheme: str, size: int) -> float | None:
    """Returns the probability that one of `size` units joins a batch of an event; `None`: no unit joins at
    a rate."""
    match event.sampling():
        case PoissonBatch(rate):
            return rate
        case FixedSizeBatch(batch):
            return batch / size
        case EveryUnit():
            return None if scheme in UNSAMPLED else 1.0
        case DealtBatches() | PermutedBatches() | FixedOrder() | CyclicPoisson():
            return None
    raise TypeError(f"an event of kind {event.kind} has no sampling rate")


def expected_batch(event: Event, size: int) -> float:
    """Returns the expected batch size of an event on `size` units.

    For Poisson batches it is the number with the fewest digits that gives the rate: what the recipe gave.
    """
    match event.sampling():
        case PoissonBatch(rate):
            return shortest_number(rate * size, lambda units: units / size == rate)
        case FixedSizeBatch(batch):
            return float(batch)
        case CyclicPoisson(parts, rate):
            return shortest_number(rate * size / parts, lambda units: units * parts / size == rate)
        case DealtBatches(batches) | FixedOrder(batches):
            return size / batches
        case PermutedBatches(batch):
            return float(batch)
        case EveryUnit():
            return float(size)
    raise TypeError(f"an event of kind {event.kind} has no batch size")


def shortest_number(value: float, accepts: Callable[[float], bool]) -> float:
    """Returns the number with the fewest digits near `value` that `accepts` takes: the original, before rounding
    changed its last digits. Returns `value` itself if there is none."""
    for digits in range(1, 17):
        rounded = float(f"{value:.{digits}g}")
        if accepts(rounded):
            return rounded
    return value


def is_divisor(divisor: float, event: Event, size: int) -> bool:
    """Returns True if a sum over the event's batches may be divided by this: their expected size, up to the rate's
    rounding."""
    return math.isclose(divisor, expected_batch(event, size), rel_tol=1e-15)
