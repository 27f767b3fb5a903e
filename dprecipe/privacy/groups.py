"""Guarantees of several units together, from that of one."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dprecipe.privacy import gdp
from dprecipe.privacy.rounding import round_up

_ROUND_UP = 1 + 1e-12
MAX_EPSILON = 700.0
"""Largest ε' whose exponential is a double."""
SHARES = 20
"""Points of a Gaussian bound, beside the first."""


def extend_point(epsilon: float, delta: float, size: int) -> tuple[float, float] | None:
    """Returns a pair (ε', δ') that holds for data sets that differ in `size` units, from a pair for those that differ
    in one; None where δ' bounds nothing.

    Guarantees: ε' >= kε and δ' >= δ (1 + e^ε + … + e^((k-1)ε)). Proof: between the two lie k - 1 data sets, each of
    which differs from the next in one unit. P₀ <= e^ε P₁ + δ, and the same bounds P₁ by P₂, and so on.
    """
    if size * epsilon > MAX_EPSILON:
        return None
    total = round_up(delta * math.fsum(math.exp(i * epsilon) for i in range(size)) * _ROUND_UP)
    return (round_up(size * epsilon), total) if total < 1 else None


def extend_points(points: Iterable[tuple[float, float]], size: int) -> list[tuple[float, float]]:
    """Returns the pairs of `size` units together, and first one that bounds nothing."""
    extended = (extend_point(epsilon, delta, size) for epsilon, delta in points)
    return [(0.0, 1.0), *(point for point in extended if point is not None)]


def extend_gaussian(mu: float, size: int) -> float:
    """Returns the μ of `size` units together, where attacks on one unit attain no more than on N(μ, 1) against N(0, 1),
    at every ε.

    Source: Dong, Roth & Su 2022, Theorem 2.14 (group privacy).
    """
    return round_up(mu * size * _ROUND_UP)


def list_gaussian_points(mu: float, last: float) -> list[tuple[float, float]]:
    """Returns pairs (ε, δ) of a Gaussian bound from ε = 0 to `last`."""
    return [(last * i / SHARES, gdp.delta(mu, last * i / SHARES)) for i in range(SHARES + 1)]
