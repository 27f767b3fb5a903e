"""What an event of noisy sums says of its steps: noise, batches, how many there are. It is stored nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.sampling import FixedSizeBatch, Partition, PoissonBatch

UNSAMPLED = ("full_batch", "shuffle")
"""Schemes that claim no amplification."""


def noise_multiplier(event: Event) -> float:
    """The scale of an event's noise over its sensitivity.

    Raises:
        TypeError: the event is no noisy sum.
    """
    if event.sampling() is None:
        raise TypeError(f"an event of kind {event.kind} is no noisy sum")
    (multiplier,) = event.multipliers
    return multiplier


def count_steps(charges: Iterable[Charge]) -> int:
    """Steps that these events take: one each, or as many as an epoch that is dealt out has batches."""
    return sum(charge.count * charge.event.steps for charge in charges)


def sampling_rate(event: Event, scheme: str, size: int) -> float | None:
    """The chance with which a unit of `size` takes part in a step of an event; `None`: no amplification is claimed."""
    if scheme in UNSAMPLED:
        return None
    match event.sampling():
        case PoissonBatch(rate):
            return rate
        case FixedSizeBatch(batch):
            return batch / size
    return 1.0


def expected_batch(event: Event, size: int) -> float:
    """Units, of `size`, that a step of an event has on average.

    Of a sampled event it is the number of fewest digits that its rate is the share of: what a recipe wrote.
    """
    match event.sampling():
        case PoissonBatch(rate):
            return shortest_number(rate * size, lambda units: units / size == rate)
        case FixedSizeBatch(batch):
            return float(batch)
        case Partition(batches):
            return size / batches
    return float(size)


def shortest_number(near: float, fits: Callable[[float], bool]) -> float:
    """The number of fewest digits beside `near` that fits: what was written, where rounding took its last digits;
    `near` where no shorter one does."""
    for digits in range(1, 17):
        written = float(f"{near:.{digits}g}")
        if fits(written):
            return written
    return near


def is_divisor(divisor: float, event: Event, size: int) -> bool:
    """Whether a sum of the event's batches may be divided by this: their expected size, but for a rate's rounding."""
    return math.isclose(divisor, expected_batch(event, size), rel_tol=1e-15)
