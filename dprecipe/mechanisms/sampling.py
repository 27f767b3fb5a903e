"""Which units take part in a step: the `sampling` block, and what it means for the length of a run.

Shared by the mechanisms that step on noisy sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, assert_never

from pydantic import Field

from dprecipe.recipe.base import Block, PositiveInt


class PoissonSampling(Block):
    """Each unit joins a lot independently; the only scheme whose sampling amplifies privacy."""

    scheme: Literal["poisson"]
    batch_size: PositiveInt = Field(description="expected size of a lot, in units")


class FullBatchSampling(Block):
    """Every unit takes part in every step."""

    scheme: Literal["full_batch"]


class ShuffleSampling(Block):
    """Each epoch deals every unit to one of its lots at random; accounted without amplification."""

    scheme: Literal["shuffle"]
    batch_size: PositiveInt = Field(description="expected size of a lot, in units")


Sampling = Annotated[PoissonSampling | FullBatchSampling | ShuffleSampling, Field(discriminator="scheme")]


@dataclass(frozen=True, slots=True)
class Pace:
    """A sampling scheme as arithmetic: how many steps an event covers, and how many make an epoch."""

    steps_per_event: int
    epoch: Fraction
    """Steps in one pass over the data; need not be whole."""
    expected_lot: float
    sampling_rate: float | None
    """`None`: no amplification is claimed."""

    @staticmethod
    def of(sampling: Sampling, size: int) -> Pace:
        """The pace over `size` units."""
        match sampling:
            case PoissonSampling(batch_size=batch_size):
                return Pace(1, Fraction(size, batch_size), float(batch_size), batch_size / size)
            case FullBatchSampling():
                return Pace(1, Fraction(1), float(size), None)
            case ShuffleSampling(batch_size=batch_size):
                lots = math.ceil(Fraction(size, batch_size))
                return Pace(lots, Fraction(lots), size / lots, None)
            case other:
                assert_never(other)

    def events_for(self, epochs: float | None, steps: int | None) -> int:
        """Whole events that cover the asked length; a part of one counts as one."""
        if steps is None:
            # Exact decimals: 0.1 epochs of 60,000 records are 6,000 records, whatever binary makes of 0.1.
            steps = math.ceil(Fraction(str(epochs)) * self.epoch)
        return math.ceil(Fraction(steps, self.steps_per_event))

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.epoch)
