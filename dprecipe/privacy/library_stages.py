"""Inputs to dp-accounting for stages that it has no event for: a choice of bounded range, and items with a threshold.

Written separately from the definitions, in terms other than the events' own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.curves import DEFAULT_ORDERS
from dprecipe.privacy.events import Charge
from dprecipe.privacy.hockey_stick import lower_hull
from dprecipe.privacy.questions import UniqueItems
from dprecipe.privacy.workload import Workload
from dprecipe.privacy.worst_case import shift_charges

Array = NDArray[np.floating[Any]]

_PARTS = (0.0, 0.5, 1.0)
_CORNERS = 2001
_LAST_DELTA, _FARTHEST = 1e-15, 500.0
"""The least δ and the largest ε of the table of a run."""
_RUN_KNOTS = 500


def distribution_of_range(largest: float, step: float) -> Any:
    """Returns the library's distribution of a choice whose losses lie within `largest` of each other: from δ at each ε
    of the grid, each the largest of all mechanisms with two outcomes."""
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots

    last = math.ceil(largest / step)
    grid = np.arange(-last, last + 1)
    losses = np.clip(step * grid, -largest, largest)
    high = (losses + largest) / 2  # the larger of the two losses, chosen to make δ largest
    mass = (1 - np.exp(high - largest)) / (np.exp(high) - np.exp(high - largest))
    deltas = np.maximum(mass * (np.exp(high) - np.exp(losses)), 0.0)
    deltas[0], deltas[-1] = -np.expm1(-step * last), 0.0
    return library.PrivacyLossDistribution(create_pmf_pessimistic_connect_dots(step, grid, deltas))


def divergences_of_range(largest: float, orders: Array) -> Array:
    """Returns Rényi divergences of a choice of bounded range: the largest of many pairs with two outcomes."""
    high_T = np.linspace(0, largest, _CORNERS)[:, None]
    mass_T = (np.exp(-high_T) - math.exp(-largest)) / -math.expm1(-largest)
    # E[e^{αl} - 1 - α(e^l - 1)], where no digits cancel if the losses are small
    high, low = high_T, high_T - largest
    excess = mass_T * (np.expm1(orders * high) - orders * np.expm1(high))
    excess = excess + (1 - mass_T) * (np.expm1(orders * low) - orders * np.expm1(low))
    result: Array = np.log1p(np.max(np.where(np.isfinite(excess), excess, np.inf), axis=0)) / (orders - 1)
    return result


def distribution_of_run(deltas: Callable[[Sequence[float]], list[float]], step: float) -> Any:
    """Returns the library's distribution of a run whose `deltas` gives δ at each ε >= 0, for both directions: δ is
    convex in exp(ε), so chords between some ε bound it."""
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots

    reach = 1.0
    while deltas([reach])[0] > _LAST_DELTA and reach < _FARTHEST:
        reach *= 1.5
    knots = np.linspace(0.0, reach, _RUN_KNOTS)
    stated = np.minimum.accumulate(np.array(deltas(knots.tolist())))
    last = math.ceil(reach / step)
    grid = np.arange(-last, last + 1)
    losses = step * grid
    # the greatest convex function below the chords: the library requires a convex curve
    slopes = np.exp(knots)
    corners = lower_hull(slopes, stated)
    above = np.interp(np.exp(np.abs(losses)), slopes[corners], stated[corners])
    values = np.where(losses >= 0, above, -np.expm1(np.minimum(losses, 0.0)) + np.exp(losses) * above)
    return library.PrivacyLossDistribution(create_pmf_pessimistic_connect_dots(step, grid, values))


@dataclass(frozen=True, slots=True)
class ItemCase:
    """A case of neighbours where some items are in one data set only: `shift` is μ² of the other items together. Unique
    items are revealed with probability `told` before the change and with another after it, which shifts the losses by
    `moved`."""

    shift: float
    told: float
    moved: float

    def rest_delta(self, delta: float, half: float | None = None) -> float:
        """Returns the part of δ left for the rest; `half`: ε of one of two steps, of removing a unit and adding
        another."""
        if half is not None:
            return delta - (1 + math.exp(min(half, 300.0))) * self.told
        return (delta - self.told) / (1 - self.told) if self.told < 1 else -1.0


def largest_of_cases(
    charges: tuple[Charge, ...],
    questions: Sequence[tuple[UniqueItems, int]],
    delta: float,
    work: Workload,
    ask: Callable[[tuple[Charge, ...], float], Any],
) -> tuple[float, str]:
    """Returns ε and the accountant's name of the most expensive case; `ask(charges, delta)` is the library's answer if
    one Gaussian stands for the items. With group privacy a unit is removed and another added, each at half of ε."""
    twice = work.needs_group_privacy
    largest = (0.0, "dp_accounting.pld")
    for case in item_cases(questions, work.neighbouring is Neighbouring.REPLACE_ONE and not twice):
        value, name = 0.0, largest[1]
        for _ in range(5 if twice else 1):  # a larger ε leaves less of δ
            rest = case.rest_delta(delta, value / 2 if twice else None)
            if not rest > 0:
                return math.inf, name
            answer = ask(shift_charges(charges, case.shift), rest)
            value, name = max(0.0, answer.epsilon + case.moved * (2 if twice else 1)), answer.name
        largest = max(largest, (value, name))
    return largest


def epsilon_by_curves(parts: Sequence[tuple[Any, int]], ranges: Sequence[tuple[float, int]], delta: float) -> float:
    """Returns ε at δ by Rényi curves: those of the library's distributions of some releases, and those of choices of
    bounded range, which compose better by their curves than by the distribution that bounds them all."""
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    orders = np.array(DEFAULT_ORDERS)
    total = np.zeros(len(orders))
    for largest, count in ranges:
        total += count * divergences_of_range(largest, orders)
    for part, count in parts:
        curves = []
        for pmf in (part._pmf_remove.to_dense_pmf(), part._pmf_add.to_dense_pmf()):
            losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
            logs = np.log(np.maximum(pmf._probs, 1e-320))
            curves.append([np.logaddexp.reduce(logs + (order - 1) * losses) / (order - 1) for order in orders])
        total += count * np.max(curves, axis=0)
        delta -= count * max(part._pmf_remove._infinity_mass, part._pmf_add._infinity_mass)
    return float(rdp.compute_epsilon(orders, total, delta)[0]) if delta > 0 else math.inf


def item_cases(questions: Iterable[tuple[UniqueItems, int]], replaced: bool) -> Iterator[ItemCase]:
    """Yields cases of items that only one of two data sets has: none, half or all of them. The largest cost is at one
    of the ends, unless both are close."""
    from scipy import stats

    sums = [(question, question.most * count) for question, count in questions]

    def kept(numbers: list[int]) -> float:
        return math.fsum(
            number * float(stats.norm.logcdf((question.threshold - 1) / question.sigma))
            for number, (question, _) in zip(numbers, sums, strict=True)
        )

    def case(before: list[int], after: list[int]) -> ItemCase:
        sides = 2 if replaced else 1
        shift = math.fsum(
            (sides * most - i - j) / question.sigma**2
            for i, j, (question, most) in zip(before, after, sums, strict=True)
        )
        return ItemCase(shift, -math.expm1(kept(before)), kept(before) - kept(after))

    none = [0 for _ in sums]
    some = [[round(part * most) for _, most in sums] for part in _PARTS]
    yield from dict.fromkeys([*(case(numbers, none) for numbers in some), case(none, some[-1])])
