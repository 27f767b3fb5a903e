"""Inputs to dp-accounting, and compositions of its distributions.

The inputs are for stages that it has no event for: a choice of bounded range, and items with a threshold. They are
written separately from the definitions, in terms other than the events' own. The compositions are of noisy counts, of
sums over batches with a maximum or fixed size, and of releases whose distribution the library makes itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.curves import DEFAULT_ORDERS
from dprecipe.privacy.events import Charge
from dprecipe.privacy.hockey_stick import lower_hull
from dprecipe.privacy.library_caps import find_full_chance
from dprecipe.privacy.questions import (
    BoundedRange,
    CappedSum,
    FixedSizeSum,
    GaussianSum,
    LibraryLoss,
    NoisyCounts,
    Question,
    SelectedRuns,
    UniqueItems,
    WholeRun,
)
from dprecipe.privacy.workload import Workload, summarise_charges
from dprecipe.privacy.worst_case import shift_charges

Array = NDArray[np.floating[Any]]
Asked = Sequence[tuple[Question, int]]

_PARTS = (0.0, 0.5, 1.0)
_CORNERS = 2001
_LAST_DELTA, _FARTHEST = 1e-15, 500.0
"""The least δ and the largest ε of the table of a run."""
_RUN_KNOTS = 500


def summarise_by_questions(charges: Sequence[Charge], neighbouring: Neighbouring) -> Workload:
    """Returns what composition needs of the charges, where μ of the unsampled Gaussians follows from the scales that
    their questions state, and not from the events' own arithmetic."""
    work = summarise_charges(charges, neighbouring)
    squares = []
    for charge in charges:
        square = charge.event.squared_mu(charge.count, work.neighbouring)
        question = charge.event.cross_check() if square else None
        if square and isinstance(question, GaussianSum):
            added = charge.event.squared_mu(charge.count, Neighbouring.ADD_OR_REMOVE_ONE) or square
            square = square / added * (charge.count / question.sigma**2)
        squares.append(square or 0.0)
    return replace(work, mu=math.sqrt(math.fsum(squares)))


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


_SMALL, _POINTS, _REFINED = 0.05, 1 << 23, 3
"""The ε below which the grid is made finer, the most points of a step's grid then, and the most such grids."""
_TOLERANCE = 2e-4
"""The share of ε that the grid of the composition may add."""


def grid_step(steps: int, kinds: int) -> float:
    """Returns the grid step: 1e-4; finer for long runs so that n h² stays small, but never so fine that it takes
    minutes; coarser if there are many different steps, each with its own distribution (for 32 of them it adds 2e-5 of
    ε)."""
    return max(1e-6, min(1e-4, 1e-2 / math.sqrt(steps + 1))) * max(1.0, kinds / 4)


def ask_finer(ask: Callable[[float], float | None], asked: Asked, delta: float, step: float) -> float | None:
    """Returns ε by `ask` on a grid of `step`; where it is small, on finer grids: each gives a bound."""
    value = ask(step)
    for _ in range(_REFINED):
        finer = _finer_step(value, asked, delta)
        again = ask(finer) if value is not None and finer < step else None
        if value is None or again is None:
            break
        value, step = min(value, again), finer
    return value


def _finer_step(epsilon: float | None, asked: Asked, delta: float) -> float:
    """Returns the grid step that adds 2e-4 of a small ε at most; infinite where ε is not small or not known, or where
    the grid of a step would have too many points."""
    reaches = [reach for question, _ in asked if (reach := _reach_of(question)) is not None]
    if epsilon is None or not 0 < epsilon < _SMALL or not reaches:
        return math.inf
    step = epsilon / 4 * math.sqrt(6 * _TOLERANCE / ((sum(count for _, count in asked) + 1) * -math.log(delta)))
    return step if max(reaches) < _POINTS * step else math.inf


def _reach_of(question: Question) -> float | None:
    """Returns about the largest loss on a grid of Gaussian noise; None for other releases."""
    match question:
        case GaussianSum(sigma, rate):
            noise = sigma
        case CappedSum(sigma, rate):
            noise = sigma / 2
        case FixedSizeSum(sigma, size, batch):
            noise, rate = sigma / 2, batch / size
        case _:
            return None
    return math.log1p(rate * math.expm1(min(12 / noise + 1 / noise**2, 500.0)))


def epsilon_of_counts(questions: Iterable[tuple[NoisyCounts, int]], delta: float) -> float:
    """Returns ε at δ of noisy counts, given as (question, count) pairs. The library gets the noise on the counts that a
    unit changes."""
    from dp_accounting.pld import privacy_loss_distribution as library

    gaussian: dict[float, float] = {}
    laplace: dict[float, int] = {}
    for question, count in questions:
        if question.family == "laplace":
            laplace[question.scale] = laplace.get(question.scale, 0) + question.changed * count
        else:
            scale = question.scale / math.sqrt(question.changed)
            gaussian[scale] = gaussian.get(scale, 0) + count
    steps = sum(laplace.values())
    spread = math.fsum(count / scale**2 for scale, count in (*gaussian.items(), *laplace.items()))
    tail = math.sqrt(2 * math.log(1 / delta) / spread)
    rough = spread * (0.5 + tail)  # ε of about as much Gaussian noise, whose Rényi order is 1 + tail
    fine = math.sqrt(12 * _TOLERANCE / 10 * rough / ((steps + 1) * (1 + tail)))
    step, beyond = max(min(fine, 1e-4 * max(1.0, rough / 100)), 1e-6), min(1e-15, 1e-6 * delta)
    parts = [
        library.from_gaussian_mechanism(scale / math.sqrt(count), value_discretization_interval=step)
        for scale, count in gaussian.items()
    ] + [
        _power(library.from_laplace_mechanism(float(scale), value_discretization_interval=step), count, beyond)
        for scale, count in laplace.items()
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part, beyond)
    return float(whole.get_epsilon_for_delta(delta))


def _power(one: Any, count: int, tail: float) -> Any:
    """Returns `one` composed `count` times, in two rounds: in a single round the library's truncation bounds are far
    too loose."""
    root = math.isqrt(count)
    whole = one.self_compose(root, tail).self_compose(count // root, tail)
    return whole.compose(one.self_compose(count % root, tail), tail) if count % root else whole


def epsilon_of_batches(
    questions: Iterable[tuple[Question, int]], mu: float, neighbouring: Neighbouring, delta: float, step: float
) -> tuple[str, float]:
    """Returns the accountant's name and ε at δ of sums some of whose batches have a maximum or fixed size, of choices
    of bounded range, of votes with Laplace noise, of whole runs, and of releases whose distribution the library makes
    itself; `mu` is the μ of the unsampled Gaussians."""
    from dprecipe.privacy.tuning import recheck

    questions = tuple(questions)
    if any(isinstance(question, SelectedRuns) and not recheck.can_ask(question) for question, _ in questions):
        return "dp_accounting", math.inf
    whole, parts, ranges, delta = compose_batches(questions, mu, neighbouring, delta, step)
    value = math.inf if whole is None else float(whole.get_epsilon_for_delta(delta))
    by_curves = epsilon_by_curves(parts, ranges, delta) if ranges else math.inf
    return ("dp_accounting.rdp", by_curves) if by_curves < value else ("dp_accounting.pld", value)


def compose_batches(
    questions: Iterable[tuple[Question, int]], mu: float, neighbouring: Neighbouring, delta: float, step: float
) -> tuple[Any, list[tuple[Any, int]], list[tuple[Any, int]], float]:
    """Returns the distribution of what `epsilon_of_batches` takes (None if there is nothing), its parts, the choices of
    bounded range, and the rest of δ.

    Maximum size: the library's own mixture, with twice the sensitivity if a batch is full, and its own binomial tail.
    Fixed size: the library's distribution of removing a unit at twice the sensitivity, its losses above 0 and their
    mirror image.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    replaced = neighbouring is Neighbouring.REPLACE_ONE
    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    tail = min(1e-15, 1e-6 * delta)

    def one(sigma: float, q: float = 1.0, of: Any = relation) -> Any:
        return library.from_gaussian_mechanism(
            float(sigma), value_discretization_interval=step, sampling_prob=float(q), neighboring_relation=of
        )

    def of_one_size(sigma: float, q: float) -> Any:
        removed = one(sigma / 2, q, NeighboringRelation.ADD_OR_REMOVE_ONE)._pmf_remove.to_dense_pmf()
        losses, above = removed._lower_loss + np.arange(removed.size), removed._probs
        above = above[losses > 0]
        mirrored = above * np.exp(-step * losses[losses > 0])
        gap = np.zeros(max(0, int(losses[losses > 0][0]) - 1))
        rest = max(0.0, 1 - float(above.sum() + mirrored.sum()) - removed._infinity_mass)
        masses = np.concatenate([mirrored[::-1], gap, [rest], gap, above])
        return library.PrivacyLossDistribution(
            DensePLDPmf(step, -int(losses[-1]), masses, removed._infinity_mass, True)
        )

    whole = one(2 / mu if replaced else 1 / mu) if mu > 0 else None
    parts = [] if whole is None else [(whole, 1)]
    ranges = []
    for question, count in questions:
        match question:
            case CappedSum(sigma, q):
                full = find_full_chance(question)
                part = one(sigma, q)
                if full * count > 1e-5 * delta:
                    part = one(sigma / 2, q).compute_mixture(part, full)
                else:
                    delta -= full * count  # a full batch counts as a failure
            case FixedSizeSum(sigma, size, batch):
                part = of_one_size(sigma, batch / size) if replaced else one(sigma / 2, batch / size)
            case GaussianSum(sigma, q) if q < 1:
                part = one(sigma, q)
            case BoundedRange(added, by_two):
                ranges.append((by_two if replaced else added, count))
                part = distribution_of_range(ranges[-1][0], step)
            case LibraryLoss(distribution):
                part = distribution(step, 1e-8 * delta / count)
            case WholeRun(_, deltas) if deltas is not None:
                part = distribution_of_run(deltas, step)
            case NoisyCounts("laplace", scale, changed):
                noise = library.from_laplace_mechanism(float(scale), value_discretization_interval=step)
                part = _power(noise, changed, tail) if changed > 1 else noise
            case SelectedRuns():
                from dprecipe.privacy.tuning import recheck

                part = recheck.selected_distribution(question, neighbouring, delta, step)
            case _:
                continue  # among the unsampled ones
        if not isinstance(question, BoundedRange):
            parts.append((part, count))
        part = part.self_compose(int(count), tail)
        whole = part if whole is None else whole.compose(part, tail)
    return whole, parts, ranges, delta
