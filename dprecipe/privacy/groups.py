"""What a guarantee for one unit gives to several units together."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dprecipe.privacy import gdp
from dprecipe.privacy.risk import Points
from dprecipe.privacy.rounding import round_up

_ROUND_UP = 1 + 1e-12
SHARES = 20
"""Points of a Gaussian bound, beside the first."""


def extend_point(epsilon: float, delta: float, size: int) -> tuple[float, float] | None:
    """Returns a pair (ε', δ') that holds for data sets that differ in `size` units, given one for each two that differ
    in one unit; None where δ' bounds nothing.

    Guarantees: ε' >= kε and δ' >= δ (1 + e^ε + … + e^((k-1)ε)), rounded up. Proof: between the two lie k - 1 data sets,
    each with one unit less than the one before. P₀ <= e^ε P₁ + δ, and the same bounds P₁ by P₂, and so on.
    """
    if size * epsilon > 700:
        return None
    total = delta * math.fsum(math.exp(i * epsilon) for i in range(size))
    return (round_up(size * epsilon), round_up(total * _ROUND_UP)) if total < 1 else None


def extend_points(points: Iterable[tuple[float, float]], size: int) -> Points:
    """Returns the pairs that hold for `size` units together, given those of one; at least the one that bounds
    nothing."""
    extended = (extend_point(epsilon, delta, size) for epsilon, delta in points)
    return [(0.0, 1.0), *(point for point in extended if point is not None and point[1] <= 1)]


def extend_gaussian(mu: float, size: int) -> float:
    """Returns the μ of `size` units together, of a guarantee that no pair of the trade-off function of N(μ, 1) against
    N(0, 1) is above.

    Source: Dong, Roth & Su 2022, Theorem 2.14 (group privacy).
    """
    return round_up(mu * size * _ROUND_UP)


def list_gaussian_points(mu: float, last: float) -> Points:
    """Returns pairs (ε, δ) of a Gaussian bound from ε = 0 to `last`."""
    return [(last * i / SHARES, gdp.delta(mu, last * i / SHARES)) for i in range(SHARES + 1)]
