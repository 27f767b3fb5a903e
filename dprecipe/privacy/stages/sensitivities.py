"""Sensitivities of the sums of a stage to one unit, with the standard library alone.

A column is clipped to public bounds [a, b] and centred: u = (x - (a+b)/2) / ((b-a)/2) is in [-1, 1]. Its two sums are
those of u and of λ(u² - c), under noise of one scale. A unit gives the mean of its rows' vectors, so a bound on a norm
or a distance for one row holds for the unit: the hull of points is no wider than they are.
"""

from __future__ import annotations

import math

_FREE_SQUARE = (11 + 5 * math.sqrt(5)) / 8
"""The largest λ² at which replacing a unit moves the two sums of a column no further than the first alone."""


def moments_squared(square_weight: float, centre: float) -> float:
    """Returns the largest squared L2 norm of (u, λ(u² - c)) for u in [-1, 1]: what adding or removing a unit moves a
    column.

    Guarantees: exact: the squared norm is convex in u², so that it is largest at u² = 0 or u² = 1. At λ = c = 1 it
    is 1, as if the second moment were not released.
    """
    weight = square_weight * square_weight
    return max(weight * centre * centre, 1 + weight * (1 - centre) ** 2)


def moments_replaced_squared(square_weight: float) -> float:
    """Returns the largest squared L2 distance of two such vectors: what replacing a unit moves a column, whatever c is.

    Guarantees: exact. With D = u - v and the sum of both at most 2 - D, the squared distance is at most
    D² (1 + λ² (2 - D)²); it is largest at D = 2, or at the root of its derivative.
    """
    weight = square_weight * square_weight
    if weight <= _FREE_SQUARE:
        return 4.0
    apart = 1.5 - math.sqrt(0.25 - 0.5 / weight)
    return max(4.0, apart * apart * (1 + weight * (2 - apart) ** 2))
