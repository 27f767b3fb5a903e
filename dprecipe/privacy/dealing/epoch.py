"""The likelihood ratio of an epoch; standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpochRatio:
    """The likelihood ratio A = 1 - weight count + weight Σ Xᵢ of an epoch, over `count` independent log-normal Xᵢ =
    exp(μ zᵢ - μ²/2): a unit takes part in each of `count` steps with probability `weight`, and in at most one."""

    mu: float
    weight: float
    count: int

    @property
    def idle(self) -> float:
        """The probability that a unit takes part in none of the steps."""
        rest = 1 - self.weight * self.count
        return rest if rest > 1e-12 else 0.0

    @property
    def variance(self) -> float:
        """Variance of A; infinite beyond the range of doubles."""
        return self.weight**2 * self.count * math.expm1(self.mu**2) if self.mu < 26 else math.inf
