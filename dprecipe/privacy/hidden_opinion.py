"""A second opinion on hidden runs, by other means than `dprecipe.privacy.hidden`.

What a record's trace is worth as a Gaussian, μ, is worked out by isotonic regression (the slopes of a greatest convex
minorant are one), scipy's; δ(ε) of that Gaussian, and of Laplace noise, is dp-accounting's. What later steps leave of a
divergence is written down here once more, from normal distribution functions. Records at places next to each other, or
numbers of steps, are taken together as the worst of them, and of the steps that come after the last use of a record at
most 4,096 are taken for nonlinear contraction: so it is no tighter than the first opinion, and a little looser.

Source: Bok, Su & Altschuler 2024; Robertson, Wright & Dykstra 1988, Theorem 1.2.1 (minorants and isotonic regression);
Asoodeh, Diaz & Calmon 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.events import ProjectedDescent

Array = NDArray[np.floating[Any]]

_CLOSE = 1.03
"""Ratio of neighbouring distances from the end that are told apart."""
_CLOSE_STOPS = 1.1
"""The same where passes are told apart too."""
_LENGTHS = (1, 2, 3, 4, 6, 8, *(2**i for i in range(4, 13)))
"""Of the last steps, over which nonlinear contraction is tried; beyond `_ENOUGH` while it gains."""
_ENOUGH = 128
_STARTS = 24
"""Steps that a distance of the whole diameter is tried after."""
_FARTHEST = {"gaussian": 8.0, "laplace": 16.0}
"""Reaches beyond it shrink hardly anything within so many steps."""
_LEAST = 1e-300
_FINE = 2e-3
"""Step of the grid of Laplace losses, over the largest of one use."""
_PRECISION = 1e-6
_MOST_EPSILON = 1e4


def epsilon(event: ProjectedDescent, delta: float) -> float:
    """ε at δ of one run; infinity where it is beyond 10,000."""
    from scipy.optimize import brentq

    total = _Run(event).total

    def excess(at: float) -> float:
        return math.log(max(float(total(np.array([at]))[0]), _LEAST) / delta)

    low, high = 0.0, 1.0
    if excess(low) <= 0:
        return 0.0
    while excess(high) > 0:
        low, high = high, 4 * high
        if high > _MOST_EPSILON:
            return math.inf
    found = float(brentq(excess, low, high, rtol=_PRECISION, xtol=1e-9))
    return found if excess(found) <= 0 else found * (1 + 2 * _PRECISION) + 2e-9


@dataclass(frozen=True, slots=True)
class _Cell:
    """Records, or ends of the run, that are taken together: the first of all uses, how many steps earlier the others
    may have been used, and where the run ends."""

    weight: float
    first: int
    width: int
    stop: int


class _Run:
    """An event with lengths over the diameter of its set."""

    def __init__(self, event: ProjectedDescent) -> None:
        steps_R, multiplier_R, self.contraction_R, diameter_R = (
            np.array(column) for column in zip(*event.stages, strict=True)
        )
        self.event, self.ends_R, self.noise_R = event, np.cumsum(steps_R), 1 / diameter_R
        self._mus_before: dict[int, Array | None] = {}
        self.shift_R, self.reach_R = self.noise_R / multiplier_R, self.contraction_R * diameter_R

    def total(self, epsilon_E: Array) -> Array:
        """δ at each ε: the mean over the random order or stop, else that of the worst place."""
        deltas_CE = self._deltas(epsilon_E)
        if self.event.order == "sequential" and self.event.stop == "last":
            return np.asarray(deltas_CE.max(axis=0))
        return np.asarray(np.array([cell.weight for cell in self.cells]) @ deltas_CE)

    @cached_property
    def cells(self) -> list[_Cell]:
        """All places, or all ends, in cells."""
        event, lots, steps = self.event, self.event.lots, self.event.steps
        if event.stop == "random":
            return list(self._stops())
        found = []
        share = event.lot / event.size
        for last in {min(steps, lots), (steps - 1) % lots + 1}:
            # lots up to the one used last, and those after it, which were used last a pass earlier
            first = 1 if last == (steps - 1) % lots + 1 else (steps - 1) % lots + 2
            for near, far in _distances(last - first + 1, _CLOSE):
                lot = last - near
                weight = (far - near) * share - (lot == lots) * (share * lots - 1)
                found.append(_Cell(weight, lot, far - near - 1, steps))
        return found

    def _stops(self) -> Iterator[_Cell]:
        """How often a record was used when the run stopped, and how many steps before: of the first lot, since no other
        has been used as often, or on average over the random order."""
        lots, steps = self.event.lots, self.event.steps

        def reached(left: int) -> float:
            """How many stops, of the last `left`, had used the record by as many steps before the end of the run."""
            left = max(left, 0)
            if self.event.order == "sequential":
                return left
            short = min(left, lots - 1)
            return self.event.lot / self.event.size * short * (short + 1) / 2 + max(left - lots + 1, 0)

        passes = -(-steps // lots)
        for least, most in _distances(passes, _CLOSE_STOPS):
            for near, far in _distances(lots, _CLOSE_STOPS):
                left = [steps - e * lots for e in range(least, most)]
                stops = math.fsum(reached(end - near) - reached(end - far) for end in left)
                if stops > 0:
                    yield _Cell(stops / steps, 1, 0, (most - 1) * lots + 1 + near)

    def _deltas(self, epsilon_E: Array) -> Array:
        """δ of each cell at each ε: as if all were seen and later steps shrank it by a constant factor, by iteration,
        or by iteration and then nonlinear contraction over some of the last steps."""
        gaussian, cells = self.event.family == "gaussian", self.cells
        composed_CE = np.array([self._seen(cell, epsilon_E) for cell in cells])
        factors_CE = np.zeros_like(composed_CE)
        for reach, count_C in zip(self.reach_R, self._after, strict=True):
            if count_C.any():
                factors_CE += np.outer(count_C, np.maximum(self._log_theta(epsilon_E, float(reach)), -1e9))
        best_CE = np.minimum(composed_CE, composed_CE * np.exp(factors_CE))
        if gaussian:
            best_CE = np.minimum(best_CE, [_gaussian(mu, epsilon_E) for mu in self._mus])
        for length in _LENGTHS:
            if (mu_C := self._late(length)) is None:
                continue
            known_CE = composed_CE
            if gaussian:
                known_CE = np.minimum(known_CE, np.exp(_log_theta(epsilon_E, np.maximum(mu_C, _LEAST)[:, None])))
            for reach in self._last_reaches(length):
                with np.errstate(divide="ignore"):
                    odds_CE = np.log(np.expm1(epsilon_E)) - np.log(np.maximum(known_CE, _LEAST))
                known_CE = known_CE * np.exp(self._log_theta(np.logaddexp(0.0, odds_CE), reach))
            last_CE, best_CE = best_CE, np.where(np.isfinite(mu_C)[:, None], np.minimum(best_CE, known_CE), best_CE)
            if length >= _ENOUGH and np.all(best_CE > 0.99 * last_CE):
                break
        return np.asarray(np.minimum(best_CE, 1.0))

    def _log_theta(self, epsilon_: Array, reach: float) -> Array:
        """log of δ at ε of two noises of unit scale at distance `reach`."""
        if self.event.family == "gaussian":
            return _log_theta(epsilon_, reach)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.maximum(-np.expm1((epsilon_ - reach) / 2), 0.0)))

    def _seen(self, cell: _Cell, epsilon_E: Array) -> Array:
        """δ as if every iterate were seen."""
        multipliers = self._multipliers(cell)
        if self.event.family == "laplace":
            return _laplace(multipliers, epsilon_E)
        return _gaussian(math.sqrt(math.fsum(count / value**2 for value, count in multipliers)), epsilon_E)

    @cached_property
    def _after(self) -> Array:
        """Of each stage, how many steps come after the last use."""
        last_C = np.array([self._last(cell) for cell in self.cells])
        stop_C = np.array([cell.stop for cell in self.cells])
        begins_R = self.ends_R - np.diff(self.ends_R, prepend=0)
        spans_RC = np.minimum(self.ends_R[:, None], stop_C) - np.maximum(begins_R[:, None], last_C)
        return np.asarray(np.maximum(spans_RC, 0))

    @cached_property
    def _mus(self) -> list[float]:
        return [self._mu(cell, cell.stop) for cell in self.cells]

    def _late(self, length: int) -> Array | None:
        """μ until `length` steps are left, of each cell; infinite where so many don't come after its last use. None
        where no such steps shrink anything."""
        if length not in self._mus_before:
            reaches = self._last_reaches(length)
            gaussian = self.event.family == "gaussian"
            self._mus_before[length] = (
                None
                if len(reaches) < length or min(reaches) > _FARTHEST[self.event.family]
                else np.array(
                    [
                        (self._mu(cell, cell.stop - length) if gaussian else 0.0)
                        if cell.stop - length >= self._last(cell)
                        else math.inf
                        for cell in self.cells
                    ]
                )
            )
        return self._mus_before[length]

    def _last_reaches(self, length: int) -> list[float]:
        """Of the last steps: where the run may stop before its end, its steps are alike."""
        steps = np.arange(self.event.steps - length, self.event.steps)
        return [float(r) for r in self.reach_R[np.searchsorted(self.ends_R, steps[steps >= 0], side="right")]]

    def _last(self, cell: _Cell) -> int:
        """The step that uses the record last."""
        return cell.stop - (cell.stop - cell.first) % self.event.lots

    def _uses(self, cell: _Cell) -> tuple[NDArray[Any], Array]:
        """Steps that use the record, and how far each moves; where the cell is wide, as far as any of its records."""
        uses_U = np.arange(cell.first, cell.stop + 1, self.event.lots)
        to_U, from_U = (np.searchsorted(self.ends_R, np.maximum(at_U, 1)) for at_U in (uses_U, uses_U - cell.width))
        shifts_U = self.shift_R[to_U]
        for back in range(int((to_U - from_U).max()) + 1):
            shifts_U = np.maximum(shifts_U, self.shift_R[np.maximum(to_U - back, from_U)])
        return uses_U, shifts_U

    def _multipliers(self, cell: _Cell) -> tuple[tuple[float, int], ...]:
        uses_U, shifts_U = self._uses(cell)
        values, counts = np.unique(self.noise_R[np.searchsorted(self.ends_R, uses_U)] / shifts_U, return_counts=True)
        return tuple((float(value), int(count)) for value, count in zip(values, counts, strict=True))

    def _mu(self, cell: _Cell, stop: int) -> float:
        """Least μ over starts: from nothing, or from the whole diameter right after one of the uses."""
        from scipy.optimize import isotonic_regression

        uses_U, shifts_U = self._uses(cell)
        uses_U, shifts_U = uses_U[uses_U <= stop], shifts_U[uses_U <= stop]
        # blocks: each use by itself, and what lies between uses, cut where stages end
        cuts = np.unique(np.concatenate([uses_U - 1, uses_U, self.ends_R, [stop]]))
        cuts = cuts[(cuts >= uses_U[0] - 1) & (cuts <= stop)]
        begins_B, ends_B = cuts[:-1], cuts[1:]
        stage_B = np.searchsorted(self.ends_R, ends_B)
        log_c_B, counts_B = np.log(np.maximum(self.contraction_R[stage_B], 1e-300)), ends_B - begins_B
        log_rest_B = np.append(np.cumsum((log_c_B * counts_B)[::-1])[::-1][1:], 0.0)  # of all later blocks
        ratios_B = np.where(log_c_B < 0, np.expm1(2 * log_c_B), -1.0)
        widths_B = np.where(log_c_B < 0, np.expm1(2 * log_c_B * counts_B) / ratios_B, counts_B)
        widths_B = widths_B * self.noise_R[stage_B] ** 2 * np.exp(2 * log_rest_B)
        moved_B = np.zeros(len(counts_B))
        at_U = np.searchsorted(ends_B, uses_U)
        moved_B[at_U] = shifts_U * np.exp(log_rest_B[at_U])
        starts = np.unique(len(at_U) - np.unique(np.geomspace(1, len(at_U), _STARTS).astype(int)))
        best = math.inf
        for start in (-1, *at_U[starts]):
            weights_B, jumps_B = widths_B[start + 1 :].copy(), moved_B[start + 1 :].copy()
            if start >= 0:
                if not len(jumps_B):
                    continue
                jumps_B[0] += math.exp(log_rest_B[start])
            kept_B = weights_B > 0
            if not kept_B.any():
                continue
            jumps_B = np.add.reduceat(jumps_B, np.append(0, np.flatnonzero(kept_B)[:-1] + 1))
            slopes_B = isotonic_regression(jumps_B / weights_B[kept_B], weights=weights_B[kept_B]).x
            best = min(best, float(weights_B[kept_B] @ slopes_B**2))
        return math.sqrt(best)


def _distances(count: int, ratio: float) -> Iterator[tuple[int, int]]:
    """0 … `count`, in half-open intervals that grow with the distance."""
    near = 0
    while near < count:
        far = min(count, max(near + 1, math.floor(near * ratio)))
        yield near, far
        near = far


def _log_theta(epsilon_: Array, reach: float | Array) -> Array:
    """log of δ at ε of two Gaussians of unit deviation at distance `reach`."""
    from scipy import special

    first = special.log_ndtr(reach / 2 - epsilon_ / reach)
    second = epsilon_ + special.log_ndtr(-reach / 2 - epsilon_ / reach)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = first + np.log1p(-np.exp(np.minimum(second - first, 0.0)))
    return np.asarray(np.where(np.isnan(log), -np.inf, log))


@lru_cache(maxsize=2048)
def _loss(mu: float) -> Any:
    from dp_accounting.pld import privacy_loss_mechanism as library

    return library.GaussianPrivacyLoss(1 / mu)


def _gaussian(mu: float, epsilon_E: Array) -> Array:
    if mu < 1e-8:
        return np.where(epsilon_E > 0, 0.0, mu)
    return np.asarray(_loss(mu).get_delta_for_epsilon(epsilon_E))


@lru_cache(maxsize=64)
def _laplaces(multipliers: tuple[tuple[float, int], ...]) -> Callable[[Array], Array]:
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.pld import privacy_loss_mechanism

    if len(multipliers) == 1 and multipliers[0][1] == 1:
        alone: Callable[[Array], Array] = privacy_loss_mechanism.LaplacePrivacyLoss(
            multipliers[0][0]
        ).get_delta_for_epsilon
        return alone
    parts, uses = [], sum(count for _, count in multipliers)
    step = _FINE * math.fsum(count / multiplier for multiplier, count in multipliers) / uses
    for multiplier, count in multipliers:
        one = library.from_laplace_mechanism(multiplier, value_discretization_interval=step)
        parts.append(one.self_compose(count, 1e-15) if count > 1 else one)
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part, 1e-15)
    result: Callable[[Array], Array] = whole.get_delta_for_epsilon
    return result


def _laplace(multipliers: tuple[tuple[float, int], ...], epsilon_E: Array) -> Array:
    return np.asarray(_laplaces(multipliers)(epsilon_E))
