"""Cases of a last-iterate release, on which δ(ε) depends: a place of the record in the order, a step at which the run
stops.

Cases are taken together where there are many, and count as the least private of them: the fewest steps after the last
use, the most uses, the largest shift.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory import iteration
from dprecipe.mechanisms.pnsgd.theory.iteration import Ints, Stages, geometric_ladder
from dprecipe.mechanisms.pnsgd.theory.search import MIN_LOG
from dprecipe.privacy import curves, gdp

Array = NDArray[np.floating[Any]]

ROUND_UP = 1 + 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Cases:
    """The cases of a release: everything that δ(ε) depends on, except ε. A chain is the uses of a record and the steps
    after the last use. A case is a chain that ends `after` steps after its last use. Knots are points along the chains,
    counted in steps from 0.

    δ is the largest over the cases (`worst`) or their weighted sum. Axes: chains C, stages R, knots G, cases F.
    """

    event: ProjectedDescent
    worst: bool
    published: Array
    """√Σ 1/multiplier² over the uses of a chain."""
    uses: Ints
    """Number of uses of the record in each stage."""
    multiplier: Array
    """The noise multiplier of such a use."""
    renyi: Array
    """r(α) of all uses together, for Laplace noise: (chains, orders)."""
    gaps: Ints
    """Number of steps from a knot to the next."""
    reach: Array
    """Largest M D over the noise of those steps."""
    knot_mu: Array
    """μ by iteration at the knots; infinite where it was not computed."""
    chain: Ints
    after: Ints
    knot: Ints
    """The last knot that is at most `after`."""
    beyond: Ints
    """Number of steps from that knot."""
    mu: Array
    weight: Array

    def combine(self, logs_F: Array) -> float:
        """Returns δ of all cases, from log δ of each, (cases,): the largest, or the weighted mean; 0 without a case."""
        if not len(logs_F):
            return 0.0
        values_F = np.where(np.isneginf(logs_F), 0.0, np.exp(np.clip(logs_F, MIN_LOG, 0.0)))
        if self.worst:
            return float(values_F.max())
        return min(1.0, float(values_F @ self.weight) * ROUND_UP)

    def upper_epsilon(self, delta: float) -> float:
        """Returns an ε at which every bound gives at most δ: the start of a search. 0 if no record is used."""
        max_published = float(self.published.max(initial=0.0))
        if self.event.family == "gaussian":
            return gdp.epsilon(max_published, delta) if max_published else 0.0
        return float((self.uses / self.multiplier).sum(axis=1).max(initial=0.0))


def laplace_curves(uses_CR: Ints, multiplier_CR: Array, orders_A: Array) -> Array:
    """Returns r(α) of the composed uses of each chain: arrays (chains, orders)."""
    result_CA = np.zeros((len(uses_CR), len(orders_A)))
    for stage in np.flatnonzero(uses_CR.any(axis=0)):
        tau_C1 = 1 / multiplier_CR[:, [stage]]
        ratio_CA = (orders_A + (orders_A - 1) * np.exp(-(2 * orders_A - 1) * tau_C1)) / (2 * orders_A - 1)
        result_CA += uses_CR[:, [stage]] * (tau_C1 + np.log(ratio_CA) / (orders_A - 1))
    return result_CA


ORDERS = (*curves.DEFAULT_ORDERS, *curves.HIGH_ORDERS)


def check_position(event: ProjectedDescent, position: int) -> None:
    """Raises ValueError for a permuted order, and for a position outside 1 to `size`."""
    if event.order != "sequential":
        raise ValueError("a record of a permuted order has no position")
    if not 1 <= position <= event.size:
        raise ValueError(f"expected a position from 1 to {event.size}, got {position}")


def find_batch(event: ProjectedDescent, position: int) -> int:
    """Returns the number of the batch, from 1, that has the record at `position`, from 1."""
    return (position - 1) // event.batch + 1


_READS = 1 << 12
"""Approximate upper limit on the number of cases; if there are more, neighbours are merged."""
_CHAINS = 400
"""Approximate upper limit on the number of chains, if each place in the order has its own."""
_MAX_SEPARATE = 1 << 16
"""Largest number of batches x stages at which each position has a chain of its own; beyond, blocks of batches share
one."""
VOID = 60.0
"""Reach beyond which a step shrinks any relevant δ by less than exp(-100), at any ε below this too."""


@functools.lru_cache(maxsize=16)
def all_cases(event: ProjectedDescent) -> Cases:
    """Returns the cases of the run's guarantee: the worst position, or the mean over random positions and stops."""
    return _uniform_cases(event, None) if len(_rows(event)) == 1 else _staged_cases(event, None)


@functools.lru_cache(maxsize=64)
def cases_at(event: ProjectedDescent, position: int) -> Cases:
    """Returns the cases of the record at `position` (1 to `size`) of a sequential order.

    Raises:
        ValueError: as `check_position`.
    """
    check_position(event, position)
    batch = (find_batch(event, position),)
    return _uniform_cases(event, batch) if len(_rows(event)) == 1 else _staged_cases(event, batch)


@functools.lru_cache(maxsize=8)
def cases_of(event: ProjectedDescent, positions: tuple[int, ...]) -> tuple[Cases, Ints]:
    """Returns cases with a chain each, and the index of each position's case, (positions,); -1 for a record that is
    never used.

    Raises:
        ValueError: as `check_position`; a random stop.
    """
    if event.stop == "random":
        raise ValueError("a position has a guarantee of its own only in a run to the last step")
    for position in positions:
        check_position(event, position)
    batch_P = _ints([find_batch(event, position) for position in positions])
    different = tuple(sorted({batch for batch in batch_P.tolist() if batch <= event.steps}))
    if len(different) * len(_rows(event)) <= _MAX_SEPARATE:
        cases = _uniform_cases(event, different) if len(_rows(event)) == 1 else _staged_cases(event, different)
        return cases, np.where(batch_P <= event.steps, np.searchsorted(different, batch_P), -1)
    place_C, _ = _places_in_blocks(event)
    order_C = np.argsort(place_C)
    block_P = np.searchsorted(place_C[order_C], batch_P)
    return all_cases(event), np.where(batch_P <= event.steps, np.append(order_C, -1)[block_P], -1)


def contracts_nothing(event: ProjectedDescent) -> bool:
    """Returns True if every contraction factor is 1 in float64."""
    return event.family == "gaussian" and min(m * diameter for _, _, m, diameter in _rows(event)) > VOID


@functools.lru_cache(maxsize=64)
def _rows(event: ProjectedDescent) -> tuple[tuple[int, float, float, float], ...]:
    """Returns the stages, with equal neighbours merged."""
    rows: list[tuple[int, float, float, float]] = []
    for steps, *rest in event.stages:
        if rows and list(rows[-1][1:]) == rest:
            steps += rows.pop()[0]
        rows.append((steps, rest[0], rest[1], rest[2]))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class _Chains:
    first: Ints
    last: Ints
    """Step of the first and of the last use."""
    width: Ints
    """Number of steps before `first` at which the record may stand as well."""


def _uniform_cases(event: ProjectedDescent, chosen: tuple[int, ...] | None) -> Cases:
    """Returns the cases of steps that are all alike: only the number of uses and the steps after the last of them
    matter."""
    batches, steps = event.batches, event.steps
    if event.stop == "random":
        uses_C, chain_F, after_F, weight_F = _random_stop_cases(event, None if chosen is None else chosen[0])
    else:
        passes, rest = divmod(steps, batches)
        if chosen is None and event.order == "permuted":
            uses_C, chain_F, after_F, weight_F = _permuted_cases(event)
        else:
            batches_in = (rest, batches if passes else 0) if chosen is None else chosen
            there = [steps - p for p in batches_in if 1 <= p <= steps]
            uses_C = _ints([remaining // batches + 1 for remaining in there])
            chain_F, after_F = np.arange(len(there)), _ints([remaining % batches for remaining in there])
            weight_F = np.ones(len(there))
    first_C = np.ones_like(uses_C)
    chains = _Chains(first_C, first_C + (uses_C - 1) * batches, np.zeros_like(uses_C))
    worst = event.stop == "last" and event.order == "sequential"
    knots_G = geometric_ladder(int(after_F.max(initial=0)), 48, 1 + 1 / 20)
    return _build_cases(
        event, chains, knots_G, np.ones(len(knots_G), dtype=np.bool_), worst, chain_F, after_F, weight_F
    )


def _permuted_cases(event: ProjectedDescent) -> tuple[Ints, Ints, Ints, Array]:
    """Returns the cases of a random place: a broken last pass has used some batches once more than others."""
    batches, (passes, rest) = event.batches, divmod(event.steps, event.batches)
    share = event.batch / event.size
    parts: list[tuple[int, Ints, Array]] = []
    if passes:
        after_F, counts_F = _blocks(rest, batches - 1, _READS)
        weight_F = counts_F * share
        weight_F[0] -= (batches * event.batch - event.size) / event.size  # the last batch, which may be short
        parts.append((passes, after_F, weight_F))
    if rest:
        after_F, counts_F = _blocks(0, rest - 1, _READS)
        parts.append((passes + 1, after_F, counts_F * share))
    chain_F = np.concatenate([np.full(len(after_F), index) for index, (_, after_F, _) in enumerate(parts)])
    after_F, weight_F = (np.concatenate([part[column] for part in parts]) for column in (1, 2))
    return _ints([uses for uses, _, _ in parts]), chain_F, after_F, weight_F


def _random_stop_cases(event: ProjectedDescent, batch: int | None) -> tuple[Ints, Ints, Ints, Array]:
    """Returns the cases of a random stop. j steps after its first use a record was used j // batches + 1 times; the
    probability of j depends on its place. The first place of a sequential order has the most uses."""
    batches, steps = event.batches, event.steps

    def chance_below(j: Array) -> Array:
        """Returns the probability of less than j."""
        chance: Array = np.minimum(j, steps - (batch or 1) + 1) / steps
        if event.order == "permuted":
            chance = (_places(event, float(steps)) - _places(event, np.maximum(steps - j, 0.0))) / steps
        return chance

    passes = -(-steps // batches)
    ends_C = np.unique(
        np.concatenate([1 + geometric_ladder(max(passes - 3, 0), 64, 1.125), [max(passes - 1, 1), passes]])
    )
    counts_C = np.diff(ends_C, prepend=0)
    after_F, counts_F = _blocks(0, min(batches, steps) - 1, max(_READS // len(ends_C), 64))
    weights: list[Array] = []
    for uses, count in zip(ends_C.tolist(), counts_C.tolist(), strict=True):
        start_F = (uses - 1.0) * batches + after_F
        weights.append(
            counts_F * count / steps if count > 1 else chance_below(start_F + counts_F) - chance_below(start_F)
        )
    weight_CF = np.maximum(np.array(weights), 0.0)
    chain_F, column_F = np.nonzero(weight_CF)
    return ends_C, chain_F, after_F[column_F], weight_CF[chain_F, column_F]


def _places(event: ProjectedDescent, q: Any) -> Any:
    """Returns Σ over steps 1..q of the chance that a record at a random place was used by then."""
    short: Any = np.minimum(q, event.batches - 1)
    return event.batch / event.size * short * (short + 1) / 2 + np.maximum(q - event.batches + 1, 0)


def _staged_cases(event: ProjectedDescent, chosen: tuple[int, ...] | None) -> Cases:
    """Returns the cases of steps that differ: each place in the order is a chain to the end of the run."""
    if event.stop == "random":
        raise ValueError("a random stop is bounded for steps that are all alike only")
    batches, steps = event.batches, event.steps
    if chosen is not None:
        place_C = _ints([batch for batch in chosen if batch <= steps])
        counts_C = np.ones_like(place_C)
    else:
        place_C, counts_C = _places_in_blocks(event)
    weight_C = counts_C * (event.batch / event.size)
    weight_C -= np.where(place_C == batches, (batches * event.batch - event.size) / event.size, 0.0)
    last_C = place_C + (steps - place_C) // batches * batches
    chains = _Chains(place_C, last_C, counts_C - 1)
    after_F = steps - last_C
    knots_G = geometric_ladder(int(after_F.max(initial=0)), 16, 1.2)
    worked_G = np.isin(knots_G, geometric_ladder(int(knots_G[-1]), 1, 4.0)) | (len(place_C) < 3)
    if contracts_nothing(event):
        worked_G = knots_G == knots_G[-1]
    worst = event.order == "sequential"
    return _build_cases(event, chains, knots_G, worked_G, worst, np.arange(len(place_C)), after_F, weight_C)


def _places_in_blocks(event: ProjectedDescent) -> tuple[Ints, Ints]:
    """Returns the last batch of each block of adjacent batches, and the number of batches in it."""
    batches, rest = event.batches, event.steps % event.batches
    parts = [(batches, batches - rest)] if event.steps >= batches else []
    parts += [(rest, rest)] if rest else []
    results = [(end, *_blocks(0, count - 1, _CHAINS)) for end, count in parts]
    place_C = np.concatenate([end - back_C for end, back_C, _ in results])
    return place_C, np.concatenate([counts_C for _, _, counts_C in results])


def _blocks(first: int, last: int, many: int) -> tuple[Ints, Ints]:
    """Returns the starts and lengths of blocks of first..last: single numbers for the first `many`/2, then blocks that
    grow with the number."""
    exact = max(many // 2, 1)
    ratio = 1 + math.log(max((last + 1) / exact, 2.0)) / exact
    starts = geometric_ladder(last, exact, ratio)
    starts = np.unique(np.concatenate([[first], starts[starts >= first]]))
    return starts, np.diff(starts, append=last + 1)


def _build_cases(
    event: ProjectedDescent,
    chains: _Chains,
    knots_G: Ints,
    worked_G: NDArray[np.bool_],
    worst: bool,
    chain_F: Ints,
    after_F: Ints,
    weight_F: Array,
) -> Cases:
    stages, multiplier_R = _stages(event)
    tail_C = np.zeros_like(chains.first)
    np.maximum.at(tail_C, chain_F, after_F)
    at_CG = np.minimum(knots_G, tail_C[:, None])
    gaps_CG = np.diff(at_CG, axis=1, append=at_CG[:, -1:])
    uses_RC, _ = iteration.count_uses(stages, event.batches, chains.first, chains.last)
    worst_RC = iteration.widen_stages(1 / multiplier_R, stages, chains.width)
    knot_F = np.searchsorted(knots_G, after_F, side="right") - 1
    mu_F, knot_mu_CG = np.full(len(chain_F), np.inf), np.full(at_CG.shape, np.inf)
    if event.family == "gaussian" and len(chain_F):
        chain_K = np.concatenate([chain_F, np.repeat(np.arange(len(tail_C)), int(worked_G.sum()))])
        after_K = np.concatenate([after_F, at_CG[:, worked_G].reshape(-1)])
        first_K, last_K, width_K = chains.first[chain_K], chains.last[chain_K], chains.width[chain_K]
        columns = np.stack([first_K, last_K + after_K, width_K]).tobytes()
        noise_R = stages.noise / stages.noise[0]
        rows = zip(stages.steps, stages.shift, stages.contraction, noise_R, strict=True)
        geometry = tuple((int(n), _digits(s, 1), float(m), _digits(nu, -1)) for n, s, m, nu in rows)
        mu_K = np.maximum(_mus(geometry, event.batches, columns) / stages.noise[0], iteration.MIN_MU)
        mu_F = mu_K[: len(chain_F)]
        knot_mu_CG[:, worked_G] = mu_K[len(chain_F) :].reshape(len(tail_C), -1)
    return Cases(
        event=event,
        worst=worst,
        published=np.sqrt((uses_RC * np.square(worst_RC)).sum(axis=0)) * ROUND_UP,
        uses=uses_RC.T,
        multiplier=1 / worst_RC.T,
        renyi=laplace_curves(uses_RC.T, 1 / worst_RC.T, np.asarray(ORDERS))
        if event.family == "laplace"
        else np.zeros((0, 0)),
        gaps=gaps_CG,
        reach=_reach(event, stages, chains.last[:, None] + at_CG, gaps_CG),
        knot_mu=knot_mu_CG,
        chain=chain_F,
        after=after_F,
        knot=knot_F,
        beyond=after_F - np.minimum(knots_G[knot_F], after_F),
        mu=mu_F,
        weight=weight_F,
    )


@functools.lru_cache(maxsize=8)
def _mus(geometry: tuple[tuple[int, float, float, float], ...], batches: int, columns: bytes) -> Array:
    """Returns `iteration.iteration_mu` of stages whose noise is relative to the first: μ falls as the noise of all
    grows, so that a search for the noise asks for the same values again and again."""
    first_K, stop_K, width_K = np.frombuffer(columns, dtype=np.int64).reshape(3, -1)
    steps, shift, m, noise = (np.array(column) for column in zip(*geometry, strict=True))
    return iteration.iteration_mu(Stages(steps.astype(np.int64), shift, m, noise), batches, first_K, stop_K, width_K)


def _digits(value: float, side: int) -> float:
    """Rounds to twelve digits, up (`side` 1) or down (-1): values that differ by rounding alone become equal."""
    return float(f"{value * (1 + side * 5e-12):.11e}")


def _stages(event: ProjectedDescent) -> tuple[Stages, Array]:
    """Returns the stages with lengths over the diameter, rounded up in what they cost, and their noise multipliers."""
    rows = _rows(event)
    steps, multiplier_R, contraction_R, diameter_R = (np.array(column) for column in zip(*rows, strict=True))
    shift_R = 1 / (diameter_R * multiplier_R)
    return Stages(steps.astype(np.int64), shift_R, contraction_R.astype(np.float64), 1 / diameter_R), multiplier_R


def _reach(event: ProjectedDescent, stages: Stages, from_CG: Ints, gaps_CG: Ints) -> Array:
    """Returns the largest M D over the noise among the steps of each gap; for an empty gap, that of some stage."""
    reach_R = np.array([m * diameter for _, _, m, diameter in _rows(event)])
    first_CG, last_CG = (
        np.minimum(np.searchsorted(stages.ends, step_CG), len(reach_R) - 1)
        for step_CG in (from_CG + np.minimum(gaps_CG, 1), from_CG + gaps_CG)
    )
    return iteration.largest_over(reach_R, first_CG, last_CG)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
