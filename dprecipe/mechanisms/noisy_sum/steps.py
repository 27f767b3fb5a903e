"""What an event of noisy sums says of its steps: noise, batches, how many there are. It is stored nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dprecipe.privacy.events import (
    Charge,
    Encoded,
    Event,
    FixedSizeGaussian,
    Gaussian,
    PartitionedGaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)

UNSAMPLED = ("full_batch", "shuffle")
"""Schemes that claim no amplification."""


def noise_multiplier(event: Event) -> float:
    """The scale of an event's noise over its sensitivity.

    Raises:
        TypeError: the event is no noisy sum.
    """
    match event:
        case (
            Gaussian(noise_multiplier=scale)
            | PoissonGaussian(noise_multiplier=scale)
            | PartitionedGaussian(noise_multiplier=scale)
            | PoissonLaplace(noise_multiplier=scale)
            | TruncatedPoissonGaussian(noise_multiplier=scale)
            | FixedSizeGaussian(noise_multiplier=scale)
            | Encoded(noise_multiplier=scale)
        ):
            return scale
    raise TypeError(f"an event of kind {event.kind} is no noisy sum")


def count_steps(charges: Iterable[Charge]) -> int:
    """Steps that these events take: one each, or as many as an epoch that is dealt out has batches."""
    return sum(
        charge.count * (charge.event.lots if isinstance(charge.event, PartitionedGaussian) else 1) for charge in charges
    )


def sampling_rate(event: Event, scheme: str, size: int) -> float | None:
    """The chance with which a unit of `size` takes part in a step of an event; `None`: no amplification is claimed."""
    if scheme in UNSAMPLED:
        return None
    match event:
        case (
            PoissonGaussian(sampling_rate=rate)
            | PoissonLaplace(sampling_rate=rate)
            | TruncatedPoissonGaussian(sampling_rate=rate)
            | Encoded(sampling_rate=rate)
        ):
            return rate
        case FixedSizeGaussian(lot=batch):
            return batch / size
    return 1.0


def expected_batch(event: Event, size: int) -> float:
    """Units, of `size`, that a step of an event has on average.

    Of a sampled event it is the number of fewest digits that its rate is the share of: what a recipe wrote.
    """
    match event:
        case (
            PoissonGaussian(sampling_rate=rate)
            | PoissonLaplace(sampling_rate=rate)
            | TruncatedPoissonGaussian(sampling_rate=rate)
            | Encoded(sampling_rate=rate)
        ):
            return shortest(rate * size, lambda units: units / size == rate)
        case FixedSizeGaussian(lot=batch):
            return float(batch)
        case PartitionedGaussian(lots=count):
            return size / count
    return float(size)


def shortest(near: float, fits: Callable[[float], bool]) -> float:
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
