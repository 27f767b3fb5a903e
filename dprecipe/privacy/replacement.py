"""Group privacy: replacing a unit is removing one and adding another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dprecipe.privacy.profile import Answer

_LARGEST_HALF = 300.0
"""Half of the largest ε that is searched."""


def epsilon_of_two(epsilon_at: Callable[[float], Answer], delta: float) -> Answer:
    """Returns 2 ε for nearly the smallest ε with (1 + exp(ε)) δ(ε) <= δ; `epsilon_at`: ε of one of both steps at a δ.

    With g(x) = ε at δ/(1 + exp(x)), every x with g(x) <= x is a bound; the secant method finds the fixed point. g is
    computed on grids, so x may end slightly above it; the tolerance grows with each iteration.

    Source: Dwork & Roth 2014, Theorem 2.2 with the δ of two steps, δ(ε) + exp(ε) δ(ε).
    """
    last, x = (-1.0, 0.0), 0.0
    for attempt in range(30):
        slack = 1e-5 * 1.5**attempt
        result = epsilon_at(delta / (1 + math.exp(x)))
        if result.value <= x <= result.value * (1 + slack):
            return Answer(2 * result.value, result.accountant, result.at_edge)
        slope = (result.value - last[1]) / (x - last[0]) if x > 0 else 0.0
        slope, last = min(max(slope, 0.0), 0.9), (x, result.value)
        x = (result.value - slope * x) / (1 - slope) * (1 + slack / 3)
        if not x < _LARGEST_HALF:
            break
    return Answer(math.inf, result.accountant)


def deltas_of_two(deltas_at: Callable[[Sequence[float]], list[Answer]], epsilons: Sequence[float]) -> list[Answer]:
    """Returns (1 + exp(ε/2)) δ(ε/2) at each ε; `deltas_at`: δ of one of both steps."""
    halves = [min(e / 2, _LARGEST_HALF) for e in epsilons]
    return [
        Answer(min(1.0, (1 + math.exp(e)) * answer.value), answer.accountant, answer.at_edge)
        for e, answer in zip(halves, deltas_at(halves), strict=True)
    ]
