"""The likelihood ratio of an epoch; standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass

Kinds = tuple[tuple[float, int], ...]
"""(μ, number of terms) of each kind of term."""


@dataclass(frozen=True, slots=True)
class EpochRatio:
    """The likelihood ratio A = 1 - weight count + weight Σ Xᵢ of an epoch, over `count` independent log-normal Xᵢ =
    exp(μ zᵢ - μ²/2): a unit takes part in each of `count` steps with probability `weight`, and in at most one.
    `doubled` of the terms have 2μ instead of μ: in these steps a unit displaces another."""

    mu: float
    weight: float
    count: int
    doubled: int = 0

    @property
    def kinds(self) -> Kinds:
        """The kinds of terms that there are."""
        both = ((self.mu, self.count - self.doubled), (2 * self.mu, self.doubled))
        return tuple(kind for kind in both if kind[1])

    @property
    def idle(self) -> float:
        """The probability that a unit takes part in none of the steps."""
        rest = 1 - self.weight * self.count
        return rest if rest > 1e-12 else 0.0

    @property
    def variance(self) -> float:
        """Variance of A; infinite beyond the range of doubles."""
        return self.weight**2 * sum(count * (math.expm1(mu**2) if mu < 26 else math.inf) for mu, count in self.kinds)


@dataclass(frozen=True, slots=True)
class MixedRatio:
    """The likelihood ratio of an epoch that is one of several `cases`, each with its probability, where everyone knows
    which one it is. What is left of the probability, `rest`, may be any epoch."""

    cases: tuple[tuple[float, EpochRatio], ...]
    rest: float
