"""Numbers that move from one value to another during a run.

Where the cost of a step depends on one, the account cuts it into a piecewise-constant schedule
(`noisy_sum.piecewise`), and the run takes exactly these values: it runs what was accounted for.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from dprecipe.language.base import Block, NonNegativeFloat, PositiveFloat


class Schedule(Block):
    """A number that moves from one value to another, then stays."""

    schedule: Literal["linear", "cosine"]
    from_: PositiveFloat = Field(alias="from", description="at the first step")
    to: NonNegativeFloat = Field(description="at the last step of the schedule")
    epochs: PositiveFloat | None = Field(None, description="length; the whole run when left out")

    def at(self, step: int, steps: int) -> float:
        """Returns the value at a step, counted from 0, of a schedule that takes `steps` of them."""
        last = steps - 1
        if step >= last:
            return self.to
        progress = step / last
        if self.schedule == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.from_ + (self.to - self.from_) * progress
