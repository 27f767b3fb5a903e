"""Privacy amplification by iteration in Gaussian differential privacy: the last iterate of a descent is μ-GDP.

Let step t have a map of Lipschitz constant M_t, noise of standard deviation ν_t, and move at most s_t farther with
one record changed (0 where it is not used). For any a_t >= 0 with z_t = M_t z_{t-1} + s_t - a_t >= 0 that ends in
z_N = 0, the last iterate is μ-GDP with μ² = Σ (a_t/ν_t)². It may start from z = 0 before the first step, or after
any step from z = D, the diameter of the set.

With P_t = M_1 ... M_t the least μ is that of the greatest convex minorant of the points
(Σ (ν_u/P_u)², z_0 + Σ s_u/P_u). P_t would underflow, so the run is cut into blocks, each from one use of the record to
just before the next, with

  S = s x the later M of the block,   W = Σ (ν_u x the later M of the block)²,   ρ = all M of the block,

and neighbours A, B are merged while S_A W_B >= ρ_B S_B W_A (the slopes fall), into (S_A ρ_B + S_B, W_A ρ_B² + W_B,
ρ_A ρ_B). Then μ² = Σ S²/W. Blocks that are all alike always merge, since ρ <= 1.

Source: Bok, Su & Altschuler 2024, "Shifted interpolation for differential privacy", Theorems 3.1 and 4.5; Feldman,
Mironov, Talwar & Thakurta 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

MIN_MU = 1e-150
"""Smallest μ that is returned for a record that was used: below it, products underflow."""

_ROUND_UP = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class Stages:
    """Stages of equal steps, in order; all lengths are divided by the diameter of the set."""

    steps: Ints
    shift: Array
    """s: the largest distance that one record adds to a step that uses it."""
    contraction: Array
    """M <= 1: the Lipschitz constant of a step's map."""
    noise: Array
    """ν: the noise's standard deviation."""

    @property
    def ends(self) -> Ints:
        """The number of each stage's last step, counted from 1."""
        return np.cumsum(self.steps)


@dataclass(frozen=True, slots=True)
class _Block:
    """A stretch of steps, for each case: what it adds to the distance (`shift`) and to the noise, and the factor that
    it leaves of an earlier distance (`rest`)."""

    shift: Array
    noise: Array
    rest: Array

    @property
    def fields(self) -> tuple[Array, Array, Array]:
        return self.shift, self.noise, self.rest

    def then(self, later: _Block) -> _Block:
        return _Block(
            self.shift * later.rest + later.shift,
            self.noise * np.square(later.rest) + later.noise,
            self.rest * later.rest,
        )

    def where(self, mask_P: NDArray[np.bool_], other: _Block) -> _Block:
        return _Block(*(np.where(mask_P, a_P, b_P) for a_P, b_P in zip(self.fields, other.fields, strict=True)))

    def merges(self, later: _Block) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = self.shift * later.noise >= later.rest * later.shift * self.noise
        return result

    @property
    def cost(self) -> Array:
        """S²/W; infinite where there is a distance and no noise."""
        noisy_P = np.where(self.noise > 0, self.noise, 1.0)
        result: Array = np.where(self.noise > 0, np.square(self.shift) / noisy_P, 0.0)
        return np.where((self.noise <= 0) & (self.shift > 0), np.inf, result)


def count_uses(stages: Stages, batches: int, first_P: Ints, stop_P: Ints) -> tuple[Ints, Ints]:
    """Returns the number of uses of the record in each stage, and the first such step: arrays (stages, cases).

    The record is used at step `first` and every `batches` steps from there; the run ends after step `stop`.
    """
    ends_R1 = stages.ends[:, None]
    begins_R1 = ends_R1 - stages.steps[:, None]
    skipped_RP = np.maximum(-((first_P - begins_R1 - 1) // batches), 0)
    at_RP = first_P + skipped_RP * batches
    return np.maximum((np.minimum(ends_R1, stop_P) - at_RP) // batches + 1, 0), at_RP


def iteration_mu(stages: Stages, batches: int, first_P: Ints, stop_P: Ints, width_P: Ints | None = None) -> Array:
    """Returns the least μ of the last iterate, for each case: a record used at step `first` and every `batches` steps
    from there, in a run that ends after step `stop` >= `first`.

    Arguments: `batches` is the number of steps of a pass; `first`, `stop` and `width` are arrays (cases,), in steps.
    `width`: the record may also be used up to this many steps before `first`, equally often. A shift does not grow
    when it is carried on without noise, so the largest shift of these steps, at the last of them, bounds all.

    Guarantees: an upper bound: the last iterate is μ-GDP. It is the least of its kind if every start was tried (a few
    stages, and up to 64 uses in each).
    Edge cases: no noise after a use gives infinity; a μ that would underflow is `MIN_MU`.
    Source: Bok, Su & Altschuler 2024, Theorems 3.1 and 4.5; the module's docstring has the algorithm.
    """
    cases = len(first_P)
    uses_RP, at_RP = count_uses(stages, batches, first_P, stop_P)
    shift_RP = widen_stages(stages.shift, stages, np.zeros_like(first_P) if width_P is None else width_P)
    nothing = _Block(np.zeros(cases), np.zeros(cases), np.ones(cases))
    block, jump, begun_P = nothing, nothing, np.zeros(cases, dtype=np.bool_)
    slots: list[_Slot] = []
    for index, end in enumerate(stages.ends.tolist()):
        begin, used_P = end - int(stages.steps[index]), uses_RP[index] > 0
        step = _Steps(float(stages.contraction[index]), float(stages.noise[index]))
        steps_P = np.maximum(np.minimum(stop_P, end) - begin, 0)
        lead = step.quiet(np.where(used_P, at_RP[index] - 1 - begin, steps_P))
        block, jump = block.then(lead), jump.then(lead)
        if not used_P.any():
            continue
        slots.append(_Slot(block.where(used_P, nothing), jump, begun_P & used_P))
        repeats_P = np.where(used_P, uses_RP[index] - 1, 0)
        use, landed = step.use(shift_RP[index]), step.landed(cases)
        if repeats_P.any():
            quiet = step.quiet(np.full(cases, batches - 1))
            like = _Run(use.then(quiet), batches * step.log_contraction)
            slots.append(_Slot(like.of(repeats_P), landed.then(quiet), repeats_P > 0, like, repeats_P))
        rest = step.quiet(np.where(used_P, steps_P - (at_RP[index] - begin) - repeats_P * batches, 0))
        block, jump = use.then(rest).where(used_P, block), landed.then(rest).where(used_P, jump)
        begun_P = begun_P | used_P
    slots.append(_Slot(block, jump, begun_P))
    return np.maximum(np.sqrt(_min_squared_mu(slots, thorough=len(stages.steps) <= _FEW_STAGES)) * _ROUND_UP, MIN_MU)


def widen_stages(values_R: Array, stages: Stages, width_P: Ints) -> Array:
    """Returns the largest value of a stage and of those that end less than `width` steps before it begins: (stages,
    cases)."""
    begins_R1 = (stages.ends - stages.steps)[:, None]
    first_RP = np.searchsorted(stages.ends, begins_R1 - width_P, side="right")
    own_R1 = np.arange(len(values_R))[:, None]
    return largest_over(values_R, np.minimum(first_RP, own_R1), np.broadcast_to(own_R1, first_RP.shape))


def largest_over(values_R: Array, first: Ints, last: Ints) -> Array:
    """Returns the largest of `values[first..last]`, for arrays of both, first <= last: by a table of the powers of
    two."""
    table = [np.asarray(values_R, dtype=np.float64)]
    while 2 ** len(table) <= len(values_R):
        half = 2 ** (len(table) - 1)
        table.append(np.concatenate([np.maximum(table[-1][:-half], table[-1][half:]), table[-1][-half:]]))
    level = np.frexp(last - first + 1)[1] - 1
    rows = np.stack(table)
    result: Array = np.maximum(rows[level, first], rows[level, last - 2**level + 1])
    return result


def geometric_ladder(last: int, exact: int, ratio: float) -> Ints:
    """Returns 0, 1, ..., `exact`, then each `ratio` times its predecessor, rounded up; the last element is `last`."""
    result = list(range(min(exact, last) + 1))
    while result[-1] < last:
        result.append(min(last, max(result[-1] + 1, int(np.ceil(result[-1] * ratio)))))
    return np.array(result, dtype=np.int64)


_FEW_STAGES = 4


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of one stage, as blocks."""

    contraction: float
    noise: float

    @property
    def log_contraction(self) -> float:
        return math.log(self.contraction) if self.contraction > 0 else -math.inf

    def quiet(self, steps_P: Ints) -> _Block:
        """Returns the block of `steps` steps that don't use the record."""
        noise_P = self.noise**2 * _geometric(2 * self.log_contraction, steps_P)
        return _Block(np.zeros(len(steps_P)), noise_P, np.power(self.contraction, steps_P.astype(np.float64)))

    def use(self, shift_P: Array) -> _Block:
        """Returns the block of one step that uses the record."""
        return _Block(shift_P, np.full_like(shift_P, self.noise**2), np.full_like(shift_P, self.contraction))

    def landed(self, cases: int) -> _Block:
        """Returns the block of one step that uses the record and leaves z = D."""
        return _Block(np.ones(cases), np.zeros(cases), np.full(cases, self.contraction))


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of equal blocks, one after the other, merged."""

    one: _Block
    log_rest: float

    def of(self, repeats_P: Ints) -> _Block:
        return _Block(
            self.one.shift * _geometric(self.log_rest, repeats_P),
            self.one.noise * _geometric(2 * self.log_rest, repeats_P),
            np.power(self.one.rest, repeats_P.astype(np.float64)),
        )


def _geometric(log_ratio: float, terms_P: Ints) -> Array:
    """Returns the sum 1 + ratio + ... of `terms` terms."""
    if log_ratio == -math.inf:
        return np.minimum(terms_P, 1).astype(np.float64)
    if log_ratio == 0:
        return terms_P.astype(np.float64)
    result: Array = np.expm1(terms_P * log_ratio) / math.expm1(log_ratio)
    return result


@dataclass(frozen=True, slots=True)
class _Slot:
    """A block, or a `run` of `repeats` of them; `jump` is its first one where z = D right after the use."""

    block: _Block
    jump: _Block
    present: NDArray[np.bool_]
    run: _Run | None = None
    repeats: Ints | None = None


class _Minorant:
    """The merged blocks of the later part of a run, the earliest on top; `cost` is the sum of all below and itself."""

    def __init__(self, depth: int, cases: int) -> None:
        self._columns = np.arange(cases)
        self._rows = _Block(np.zeros((depth + 1, cases)), np.zeros((depth + 1, cases)), np.ones((depth + 1, cases)))
        self._cost = np.zeros((depth + 1, cases))
        self.depth = np.zeros(cases, dtype=np.int64)

    def merged(self, block: _Block, depth_P: Ints) -> tuple[_Block, Ints]:
        """Returns the block with all that it merges with, and the depth of what is left."""
        while True:
            top = _Block(*(rows[depth_P, self._columns] for rows in self._rows.fields))
            merges_P = (depth_P > 0) & block.merges(top)
            if not merges_P.any():
                return block, depth_P
            block, depth_P = block.then(top).where(merges_P, block), depth_P - merges_P

    def cost(self, depth_P: Ints) -> Array:
        result: Array = self._cost[depth_P, self._columns]
        return result

    def push(self, block: _Block) -> None:
        block, depth_P = self.merged(block, self.depth)
        self.depth = depth_P + 1
        for rows, values_P in zip(self._rows.fields, block.fields, strict=True):
            rows[self.depth, self._columns] = values_P
        self._cost[self.depth, self._columns] = self.cost(depth_P) + block.cost


def _min_squared_mu(slots: list[_Slot], *, thorough: bool) -> Array:
    """Returns the least μ² over all starts, by pool adjacent violators from the last block to the first."""
    cases = len(slots[0].present)
    later = _Minorant(len(slots), cases)
    min_P = np.full(cases, np.inf)
    for slot in reversed(slots):
        max_repeats = 0 if slot.repeats is None else int(slot.repeats.max()) - 1
        for repeats in geometric_ladder(max_repeats, 64, 1.125) if thorough else geometric_ladder(max_repeats, 1, 4.0):
            present_P = slot.present
            if slot.repeats is not None:
                present_P = present_P & (slot.repeats > repeats)
            if present_P.any():
                min_P = np.minimum(min_P, np.where(present_P, _from_jump(slot, later, int(repeats)), np.inf))
        later.push(slot.block)
    return np.asarray(np.minimum(min_P, later.cost(later.depth)))


def _from_jump(slot: _Slot, later: _Minorant, repeats: int) -> Array:
    """Returns μ² from z = D in the slot, with `repeats` equal blocks of it, and all that comes later."""
    if not repeats or slot.run is None:
        block, depth_P = later.merged(slot.jump, later.depth)
        unmerged_P: Array = block.cost + later.cost(depth_P)
        return unmerged_P
    run, depth_P = later.merged(slot.run.of(np.full(len(slot.present), repeats)), later.depth)
    joined_P = slot.jump.merges(run)
    block, below_P = later.merged(slot.jump.then(run), depth_P)
    separate_P = slot.jump.cost + run.cost + later.cost(depth_P)
    min_P: Array = np.where(joined_P, block.cost + later.cost(below_P), separate_P)
    return min_P
