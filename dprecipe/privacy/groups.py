"""Guarantees for several units together: a family whose members all leave, join or are replaced.

Between two data sets that differ in k units lie k - 1 others, and each differs from the next in one. A curve δ(ε)
of one unit therefore bounds that of k: P₀ <= e^ε₁ P₁ + δ(ε₁), and P₁ likewise, with another ε₂. So for any split of
ε = ε₁ + … + ε_k, of either sign,

    δ_k(ε) <= δ(ε₁) + e^ε₁ δ(ε₂) + … + e^(ε₁ + … + ε_{k-1}) δ(ε_k).

The best split is exact for Gaussian mechanisms. Equal parts are the usual form, which is looser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from dprecipe.privacy import accountants, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.curves import Array
from dprecipe.privacy.events import Charge
from dprecipe.privacy.rounding import round_up
from dprecipe.privacy.workload import shrink_charges

SIZES = (2, 3, 4)
"""Numbers of units that a certificate bounds together."""
_ROUND_UP = 1 + 1e-12
LARGEST = 300.0
"""Largest ε of a curve that is extended: its exponential, and that of a split, are doubles."""
POINTS = 200
"""Points of one unit's curve, from ε = 0 to twice the claim."""
_CELLS = 800
"""Cells of the grid of ε on which the best split is looked for."""
_FAR = 4.0
"""Factor by which a curve is followed farther where its first part bounds nothing."""
_LEAST = 1e-290
"""Least δ of one unit: smaller ones may have lost digits, or be 0 because doubles end."""
_EVERY = 20
"""Distance between the points of a curve that are listed."""
_BACK = 0.5
"""Reach of the grid below 0, over that above."""


@final
@dataclass(frozen=True, slots=True)
class GroupCurve:
    """Bounds of δ for `size` units together, at ε = `step` * (0, 1, …)."""

    size: int
    step: float
    deltas: Array

    def epsilon(self, delta: float) -> float:
        """Returns an upper bound of ε at δ; infinite where the curve does not reach down to δ.

        Guarantees: δ is convex in exp(ε), so a chord between two bounds is one.
        """
        for index, value in enumerate(self.deltas.tolist()):
            if value <= delta:
                if index == 0:
                    return 0.0
                before = float(self.deltas[index - 1])
                low, high = (math.exp(self.step * (i - index)) for i in (index - 1, index))
                share = (before - delta) / (before - value)
                return self.step * index + math.log(low + share * (high - low)) + 1e-12 * self.step * index
        return math.inf

    def list_points(self) -> list[tuple[float, float]]:
        """Returns some pairs (ε, δ) along the curve, from ε = 0 on."""
        return [(self.step * index, float(value)) for index, value in enumerate(self.deltas)][::_EVERY]


def extend_curve(points: Iterable[tuple[float, float]], size: int) -> GroupCurve:
    """Returns bounds for `size` units from pairs (ε >= 0, δ) that hold for one, in both directions.

    Guarantees: each bound holds. Those of one unit between two points are on the chord in exp(ε), those below 0 follow
    from the other direction: H(-ε) = 1 - e^-ε + e^-ε δ(ε).
    """
    known_at = {0.0: 1.0}
    for e, d in points:
        if e <= LARGEST:
            known_at[e] = min(d, known_at.get(e, 1.0))
    at, known = (np.array(column) for column in zip(*sorted(known_at.items()), strict=True))
    known = np.maximum(known, _LEAST)
    step, behind = float(at[-1]) / _CELLS, int(_BACK * _CELLS)
    if step == 0:
        return GroupCurve(size, 0.0, np.minimum(size * known[:1] * _ROUND_UP, 1.0))
    above_N = _follow_chords(np.linspace(0.0, at[-1], _CELLS + 1), at, np.minimum.accumulate(known))
    below_N = step * np.arange(-behind, 0)
    mirrored_N = -np.expm1(below_N) + np.exp(below_N) * above_N[behind:0:-1]
    one_N = np.concatenate([mirrored_N, above_N])
    total_M, start = one_N, -behind
    for _ in range(size - 1):
        length = len(total_M) + len(one_N) - 1
        best_M = np.full(length, np.inf)
        for index, delta in enumerate(one_N.tolist()):
            factor = math.exp(step * (index - behind))
            part_M = best_M[index : index + len(total_M)]
            np.minimum(part_M, delta + factor * total_M, out=part_M)
        total_M, start = best_M, start - behind
    return GroupCurve(size, step, np.minimum(total_M[-start:] * _ROUND_UP, 1.0))


def _follow_chords(x_N: Array, knots: Array, deltas: Array) -> Array:
    """Returns the value at each x of the chords between neighbouring knots, straight in exp(x)."""
    last = np.clip(np.searchsorted(knots, x_N, side="right"), 1, len(knots) - 1)
    first = last - 1
    share_N = np.clip(np.expm1(x_N - knots[first]) / np.expm1(knots[last] - knots[first]), 0.0, 1.0)
    result: Array = (1 - share_N) * deltas[first] + share_N * deltas[last]
    return result


def bound_groups(
    charges: Sequence[Charge],
    delta: float,
    relation: Neighbouring,
    accountant: str,
    epsilon: float,
    sizes: Sequence[int] = SIZES,
) -> tuple[tuple[int, float], ...]:
    """Returns (size, upper bound of ε at δ) for each of `sizes`, where one unit costs at most `epsilon`; infinite where
    no bound is known.

    Guarantees: the composition of the charges is (ε, δ)-DP for data sets that differ in `size` units, each added or
    removed (all of them alike), or each replaced or zeroed out. Source: docs/explanation/accounting.md#groups.
    """
    return tuple((size, _bound_group(charges, delta, relation, accountant, epsilon, size)) for size in sizes)


def _bound_group(
    charges: Sequence[Charge], delta: float, relation: Neighbouring, accountant: str, epsilon: float, size: int
) -> float:
    together = [charge.event.together(size, relation) for charge in charges]
    if all(event is not None for event in together):
        moved = [Charge(event, charge.count) for event, charge in zip(together, charges, strict=True) if event]
        exact = accountants.epsilon(moved, delta, relation, accountant)
        if math.isfinite(exact):
            return exact
    fewest = shrink_charges(charges, size - 1, relation)
    if fewest is None or not epsilon < LARGEST:
        return math.inf
    near, far = (list_epsilons(epsilon * reach) for reach in (1.0, _FAR))
    points = list(accountants.profile(fewest, relation, accountant, near))
    result = extend_curve(points, size).epsilon(delta)
    if math.isinf(result) and far[-1] <= LARGEST:
        points += accountants.profile(fewest, relation, accountant, far)
        result = extend_curve(points, size).epsilon(delta)
    return result


def list_epsilons(epsilon: float) -> list[float]:
    """Returns the ε at which the curve of one unit is looked at, from 0 to twice the claim."""
    return [2 * epsilon * i / POINTS for i in range(POINTS + 1)]


def extend_gaussian(mu: float, size: int) -> float:
    """Returns the μ of `size` units together, where attacks on one unit attain no more than on N(μ, 1) against N(0, 1),
    at every ε.

    Source: Dong, Roth & Su 2022, Theorem 2.14 (group privacy).
    """
    return round_up(mu * size * _ROUND_UP)


def list_gaussian_points(mu: float, last: float) -> list[tuple[float, float]]:
    """Returns pairs (ε, δ) of a Gaussian bound from ε = 0 to `last`."""
    return [(last * i / POINTS, gdp.delta(mu, last * i / POINTS)) for i in range(POINTS + 1)]
