"""A second computation of last-iterate releases, for the cross-check accountant: it calls nothing of `last_iterate`.

The trace of a record is at most that of a Gaussian with some μ. μ is the cost of a greatest convex minorant: if all
steps are equal, by the max-min formula of its slopes, else by scipy's isotonic regression, which the slopes are. δ(ε)
of that Gaussian, and of Laplace noise, is dp-accounting's. The divergence that later steps leave is implemented here
a second time, from normal distribution functions.

Records at adjacent places, or adjacent numbers of steps, are taken together as the worst of them; μ is rounded up to
one of some hundred values, and Laplace noise down; a divergence is held constant while a few steps shrink it. Each of
these only adds, so the result is an upper bound, slightly looser than the first computation. Many equal uses are added
up in closed form, and starts from the whole diameter are tried after some uses only, so the work hardly grows with
steps, passes and records.

Source: Bok, Su & Altschuler 2024; Robertson, Wright & Dykstra 1988, Theorem 1.2.1 and Section 1.4 (minorants, isotonic
regression, max-min formulas); Asoodeh, Diaz & Calmon 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory.recheck_noise import (
    MAX_EPSILON,
    MIN_DELTA,
    STARTS,
    Uses,
    compose_laplace,
    compute_cycle_mu,
    gaussian_deltas,
    log_theta,
    merge_kinds,
    spread_points,
    sum_powers,
)

Array = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

_CLOSE = 1.03
"""Ratio of distances from the end, below which neighbouring places are taken together."""
_CLOSE_STOPS = 1.1
"""The same ratio where passes are separate too."""
_MAX_CELLS = 1 << 15
"""Largest number of cells x stages: with more stages, more places are taken together."""
_MAX_STOPS = 1 << 13
"""Largest number of cells of a random stop, likewise."""
_MAX_STARTS = 1 << 14
"""Largest number of tried starts x stages."""
_LATE = 1 << 20
"""Largest number of stages x steps before the end at which μ is computed, where steps differ."""
_FARTHEST = 10.0
"""Largest reach of Gaussian noise that is used; larger ones shrink hardly anything."""
_PARTS = 4
"""Number of parts of a leg of later steps; in each, the divergence is held constant."""
_PRECISION = 1e-6


def epsilon(event: ProjectedDescent, delta: float) -> float:
    """Returns ε at δ of one run; infinity where it is beyond 10^11, or a record is used by Laplace noise 10^5 times."""
    from scipy.optimize import brentq

    run = RecheckedRun(event)

    def excess(at: float) -> float:
        return math.log(max(run.total(at), MIN_DELTA) / delta)

    low, high = 0.0, 1.0
    if excess(low) <= 0:
        return 0.0
    while excess(high) > 0:
        low, high = high, 4 * high
        if high > MAX_EPSILON:
            return math.inf
    result = float(brentq(excess, low, high, rtol=_PRECISION, xtol=1e-9))
    return result if excess(result) <= 0 else result * (1 + 2 * _PRECISION) + 2e-9


@dataclass(frozen=True, slots=True)
class Cell:
    """Records, or ends of the run, that are taken together: the first of all uses, how many steps earlier the others
    may have been used, and where the run ends."""

    weight: float
    first: int
    width: int
    stop: int


class RecheckedRun:
    """An event with lengths over the diameter of its set. Axes: stages R, cells C, blocks of steps B."""

    def __init__(self, event: ProjectedDescent, cells: Sequence[Cell] | None = None) -> None:
        rows: list[tuple[int, tuple[float, ...]]] = []
        for steps, *rest in event.stages:
            steps += rows.pop()[0] if rows and rows[-1][1] == tuple(rest) else 0
            rows.append((steps, tuple(rest)))
        multiplier_R, self.contraction_R, diameter_R = (
            np.array(column) for column in zip(*(r for _, r in rows), strict=True)
        )
        self.event, self.ends_R = event, np.cumsum([steps for steps, _ in rows])
        self.begins_R = np.append(0, self.ends_R[:-1])
        self.noise_R = 1 / diameter_R
        self.shift_R, self.reach_R = self.noise_R / multiplier_R, self.contraction_R * diameter_R
        self.log_c_R = np.log(np.maximum(self.contraction_R, MIN_DELTA))
        self.is_uniform = len(rows) == 1
        self.cells = list(self._all_cells()) if cells is None else list(cells)
        columns = [(cell.first, cell.width, cell.stop) for cell in self.cells]
        self.first_C, self.width_C, self.stop_C = np.array(columns, dtype=np.int64).T
        self.after_C = (self.stop_C - self.first_C) % event.batches
        self.published = self._published_deltas()
        self.legs = self._legs()

    def total(self, epsilon_: float) -> float:
        """Returns δ at ε: the mean over the random order or stop, else that of the worst place."""
        delta_C = self._deltas(epsilon_)
        if self.event.order == "sequential" and self.event.stop == "last":
            return float(delta_C.max())
        return float(np.array([cell.weight for cell in self.cells]) @ delta_C)

    # Cells

    def _all_cells(self) -> Iterator[Cell]:
        """Yields all places, or all ends, in cells."""
        event, batches, steps = self.event, self.event.batches, self.event.steps
        if event.stop == "random":
            yield from self._stops()
            return
        ratio = _CLOSE
        while math.log(batches) / math.log(ratio) * len(self.ends_R) > _MAX_CELLS and ratio < 1.5:
            ratio **= 1.25
        share, rest = event.batch / event.size, (steps - 1) % batches + 1
        # batches up to the one used last, and those after it, which were used last a pass earlier
        for first, last in {(1, rest), (rest + 1, min(steps, batches))}:
            for near, far in _distances(last - first + 1, ratio):
                batch = last - near
                weight = (far - near) * share - (batch == batches) * (share * batches - 1)
                yield Cell(weight, batch, far - near - 1, steps)

    def _stops(self) -> Iterator[Cell]:
        """Yields cells of the number of uses when the run stopped, and of the steps since the last: of the first batch,
        since no other has been used as often, or on average over the random order. Every such pair has at most one stop
        of `steps`; near the end of a random order, fewer."""
        batches, steps = self.event.batches, self.event.steps

        def reached(remaining: int) -> float:
            """Returns how many of the last `remaining` stops come after the record's use, counted back from the run's
            end."""
            remaining = max(remaining, 0)
            if self.event.order == "sequential":
                return remaining
            short = min(remaining, batches - 1)
            return self.event.batch / self.event.size * short * (short + 1) / 2 + max(remaining - batches + 1, 0)

        passes = -(-steps // batches)
        early = max(passes - 2, 0)
        ratio = _CLOSE_STOPS
        while math.log(batches) * math.log(passes) > _MAX_STOPS * math.log(ratio) ** 2:
            ratio **= 1.25
        blocks = [*_distances(early, ratio), *((e, e + 1) for e in range(early, passes))]
        for low, high in blocks:
            for near, far in _distances(batches, ratio):
                stops: float = (high - low) * (far - near)
                if low >= early:
                    stops = reached(steps - low * batches - near) - reached(steps - low * batches - far)
                if stops > 0:
                    yield Cell(stops / steps, 1, 0, (high - 1) * batches + 1 + near)

    # δ

    def _deltas(self, epsilon_: float) -> Array:
        """Returns δ of each cell: as if all were seen and later steps shrank it by a constant factor, by iteration, or
        by iteration and then nonlinear contraction over some of the last steps."""
        composed_C = self.published(epsilon_)
        factor_R = np.maximum(self.log_theta(epsilon_, self.reach_R), -1e9)
        best_C = np.minimum(composed_C, composed_C * np.exp(self._spans @ factor_R))
        known_C = composed_C
        log_excess = epsilon_ + math.log(-math.expm1(-epsilon_)) if epsilon_ > 0 else -math.inf
        for steps_C, reach, mu_C in self.legs:
            each_C = steps_C / _PARTS
            for part in range(_PARTS):
                # whole steps: the rest belongs to the last part
                now_C = np.floor(each_C) if part < _PARTS - 1 else steps_C - (_PARTS - 1) * np.floor(each_C)
                odds_C = log_excess - np.log(np.maximum(known_C, MIN_DELTA))
                log_factor_C = self.log_theta(np.logaddexp(0.0, odds_C), reach)
                known_C = known_C * np.exp(np.where(now_C > 0, now_C * np.maximum(log_factor_C, -1e9), 0.0))
            if mu_C is not None:
                known_C = np.minimum(known_C, np.exp(log_theta(epsilon_, mu_C)))
        best_C = np.minimum(best_C, known_C)
        if self.event.family == "gaussian":
            best_C = np.minimum(best_C, gaussian_deltas(self.mu_C, epsilon_))
        return np.asarray(np.minimum(best_C, 1.0))

    def log_theta(self, epsilon_: float | Array, reach: float | Array) -> Array:
        """Returns log of δ at ε of two noises of unit scale at distance `reach`."""
        if self.event.family == "gaussian":
            return log_theta(epsilon_, reach)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(-np.expm1(np.minimum((np.asarray(epsilon_) - reach) / 2, 0.0))))

    def _legs(self) -> list[tuple[Array, float, Array | None]]:
        """Returns the steps after a cell's last use in legs that get shorter towards the end: each cell's number of
        steps, the largest reach among them, and μ where they end (infinite before the last use, None where it isn't
        computed). Sets what no ε changes: `mu_C` and `_spans`, the steps of each stage after the last use."""
        gaussian, last_C = self.event.family == "gaussian", self.stop_C - self.after_C
        spans_CR = np.minimum(self.ends_R, self.stop_C[:, None]) - np.maximum(self.begins_R, last_C[:, None])
        self._spans = np.maximum(spans_CR, 0).astype(np.float64)
        self.mu_C = self._mus(self.stop_C, np.ones(len(last_C), dtype=bool)) if gaussian else np.zeros(len(last_C))
        remaining = int(self.after_C.max())
        ends = {math.ceil(2 ** (k / 2)) for k in range(2 * remaining.bit_length())}
        spans = list(pairwise(sorted({0, remaining, *(end for end in ends if end < remaining)}, reverse=True)))
        reaches = [self._largest_reach(far, near) for far, near in spans]
        legs: list[tuple[Array, float, Array | None]] = []
        farthest = _FARTHEST if gaussian else math.inf
        if gaussian and min(reaches, default=math.inf) <= farthest:
            legs.append((np.zeros(len(last_C)), 1.0, self._mus(last_C, np.ones(len(last_C), dtype=bool))))
        for (far, near), reach, following in zip(spans, reaches, [*reaches, math.inf][1:], strict=True):
            worked = gaussian and following <= farthest and (self.is_uniform or near * len(self.ends_R) <= _LATE)
            steps_C = np.clip(self.after_C - near, 0, far - near if reach <= farthest else 0).astype(np.float64)
            if worked or reach <= farthest:
                legs.append((steps_C, reach, self._mus(self.stop_C - near, self.after_C >= near) if worked else None))
        return legs

    def _largest_reach(self, far: int, near: int) -> float:
        """Returns the largest reach among steps from `far` to `near` before the end: where the run may stop before it,
        steps are alike."""
        first, last = np.searchsorted(self.ends_R, [self.event.steps - far + 1, self.event.steps - near])
        return float(self.reach_R[first : last + 1].max())

    # What all uses show

    def _published_deltas(self) -> Callable[[float], Array]:
        """Returns δ of each cell, as a function of ε, as if every iterate were seen."""
        uses_C = (
            [self._multipliers(cell) for cell in self.cells] if not self.is_uniform else self._uniform_multipliers()
        )
        if self.event.family == "gaussian":
            mu_C = np.array([math.sqrt(math.fsum(n / value**2 for value, n in uses)) for uses in uses_C])
            return lambda epsilon_: gaussian_deltas(mu_C, epsilon_)
        kinds, kind_C = merge_kinds(uses_C)
        deltas = [compose_laplace(uses) for uses in kinds]
        return lambda epsilon_: np.array([float(delta(epsilon_)) for delta in deltas])[kind_C]

    def _uniform_multipliers(self) -> list[Uses]:
        multiplier = float(self.noise_R[0] / self.shift_R[0])
        uses_C = (self.stop_C - self.first_C) // self.event.batches + 1
        return [((multiplier, int(uses)),) for uses in uses_C]

    def _multipliers(self, cell: Cell) -> Uses:
        uses_R, _, shift_R = self._uses(cell.first, cell.width, cell.stop)
        used_R = uses_R > 0
        values, where = np.unique(self.noise_R[used_R] / shift_R[used_R], return_inverse=True)
        counts = np.bincount(where, uses_R[used_R])
        return tuple((float(value), int(count)) for value, count in zip(values, counts, strict=True))

    def _uses(self, first: int, width: int, stop: int) -> tuple[Ints, Ints, Array]:
        """Returns, for each stage, the number of uses of the record, the first such step, and the distance that it
        moves: in a wide cell, the largest of any of its records."""
        batches = self.event.batches
        at_R = first + np.maximum(-((first - self.begins_R - 1) // batches), 0) * batches
        uses_R = np.maximum((np.minimum(self.ends_R, stop) - at_R) // batches + 1, 0)
        if not width:
            return uses_R, at_R, self.shift_R
        own_R = np.arange(len(at_R))
        from_R = np.minimum(np.searchsorted(self.ends_R, np.maximum(at_R - width, 1)), own_R)
        windows = np.stack([from_R, own_R + 1], axis=1).reshape(-1)
        return uses_R, at_R, np.maximum.reduceat(np.append(self.shift_R, 0.0), windows)[::2]

    # μ

    def _mus(self, stop_C: Ints, there_C: NDArray[np.bool_]) -> Array:
        """Returns μ of each cell that is `there`, its run ended at `stop`; infinity for the others."""
        mu_C = np.full(len(stop_C), math.inf)
        if self.is_uniform:
            batches, since_C = self.event.batches, (stop_C - self.first_C)[there_C]
            shift, noise, log_c = (float(values_R[0]) for values_R in (self.shift_R, self.noise_R, self.log_c_R))
            mu_C[there_C] = compute_cycle_mu(shift, noise, log_c, batches, since_C // batches, since_C % batches)
            return mu_C
        for index in np.flatnonzero(there_C):
            mu_C[index] = self._mu(int(self.first_C[index]), int(self.width_C[index]), int(stop_C[index]))
        return mu_C

    def _mu(self, first: int, width: int, stop: int) -> float:
        """Returns the least μ over starts: from nothing, or from the whole diameter right after one of the uses."""
        from scipy.optimize import isotonic_regression

        batches = self.event.batches
        uses_R, at_R, shift_R = self._uses(first, width, stop)
        max_repeats = (stop - first) // batches
        start_count = max(3, min(STARTS, _MAX_STARTS // len(at_R)))
        starts = sorted({max_repeats - many for many in spread_points(max_repeats, start_count)}, reverse=True)
        lasts_U = (at_R + (uses_R - 1) * batches)[uses_R > 0]
        own_U = np.unique(np.append(lasts_U, [first + use * batches for use in starts]))
        # blocks: uses that are looked at by themselves, whole cycles of uses, and what lies between, in one stage each
        cuts = np.concatenate([own_U - 1, own_U, own_U + batches - 1, at_R[uses_R > 0] - 1, self.ends_R, [stop]])
        cuts = np.unique(cuts[(cuts >= first - 1) & (cuts <= stop)])
        begins_B, counts_B = cuts[:-1], np.diff(cuts)
        stage_B = np.searchsorted(self.ends_R, cuts[1:])
        log_c_B = self.log_c_R[stage_B]
        log_rest_B = np.append(np.cumsum((log_c_B * counts_B)[::-1])[::-1][1:], 0.0)  # of all later blocks
        widths_B = self.noise_R[stage_B] ** 2 * sum_powers(2 * log_c_B, counts_B) * np.exp(2 * log_rest_B)
        used_B = (begins_B + 1 - first) % batches == 0
        repeats_B = np.where(used_B, (counts_B - 1) // batches + 1, 0)
        later_B = np.where(used_B, log_c_B * (counts_B - 1 - (repeats_B - 1) * batches), 0.0) + log_rest_B
        displacement_B = shift_R[stage_B] * sum_powers(log_c_B * batches, repeats_B) * np.exp(later_B)

        def cost(weights_B: Array, jumps_B: Array) -> float:
            noisy_B = weights_B > 0
            if not noisy_B.any():
                return math.inf
            w, group_starts = weights_B[noisy_B], np.append(0, np.flatnonzero(noisy_B)[:-1] + 1)
            slopes = isotonic_regression(np.add.reduceat(jumps_B, group_starts) / w, weights=w).x
            return float(w @ slopes**2)

        best = cost(widths_B, displacement_B)
        noise_B, rise_B = (np.cumsum(values_B[::-1])[::-1] for values_B in (widths_B, displacement_B))
        for use in starts:
            block = int(np.searchsorted(begins_B, first + use * batches))
            if block < len(begins_B):
                jump = math.exp(log_rest_B[block - 1])
                if (jump + rise_B[block]) ** 2 < best * noise_B[block]:  # no cost is below rise²/noise
                    best = min(
                        best,
                        cost(widths_B[block:], np.append(displacement_B[block] + jump, displacement_B[block + 1 :])),
                    )
        return math.sqrt(best)


def _distances(count: int, ratio: float) -> Iterator[tuple[int, int]]:
    """Yields half-open intervals that cover 0 … `count` and grow with the distance."""
    near = 0
    while near < count:
        far = min(count, max(near + 1, math.floor(near * ratio)))
        yield near, far
        near = far
