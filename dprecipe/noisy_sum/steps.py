"""Reads the steps of a noisy-sum event: noise, batches and count are in the event and stored nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.sampling import FixedSizeBatch, Partition, PoissonBatch

UNSAMPLED = ("full_batch", "shuffle")
"""Schemes that claim no amplification."""


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
    """Counts the steps that these events take: one each, or all batches of an epoch for a partition."""
    return sum(charge.count * charge.event.steps for charge in charges)


def sampling_rate(event: Event, scheme: str, size: int) -> float | None:
    """Returns the probability that one of `size` units joins a batch of an event; `None`: no amplification is
    claimed."""
    if scheme in UNSAMPLED:
        return None
    match event.sampling():
        case PoissonBatch(rate):
            return rate
        case FixedSizeBatch(batch):
            return batch / size
    return 1.0


def expected_batch(event: Event, size: int) -> float:
    """Returns the expected batch size of an event on `size` units.

    For a sampled event it is the shortest number whose share of `size` is the rate: what the recipe gave.
    """
    match event.sampling():
        case PoissonBatch(rate):
            return shortest_number(rate * size, lambda units: units / size == rate)
        case FixedSizeBatch(batch):
            return float(batch)
        case Partition(batches):
            return size / batches
    return float(size)


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
