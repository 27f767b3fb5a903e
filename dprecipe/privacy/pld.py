"""Privacy-loss accounting of a workload: chooses the grid, composes both directions, and takes the worse ε or δ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dprecipe.privacy import pairs
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.composition import Composition, WindowError
from dprecipe.privacy.loss import (
    LARGEST_LOSS,
    MAX_BINS,
    GridError,
    Loss,
    LossPair,
    LossRangeError,
    NoPairError,
    swap_loss,
)
from dprecipe.privacy.workload import Workload

TOLERANCE = 5e-5
"""The share of ε that the grid may add."""
_TAIL_SHARE = 1e-8
"""The share of δ that each direction's truncated tails may add."""
_MANY, _PROBE, _WIDER = 100_000, 8, 1.25
"""The number of events from which on a grid `_PROBE` times as coarse is tried first: windows are hardly `_WIDER` times
as wide."""
_ROUNDS, _FINEST = 4, 64.0
"""The most rounds of better guesses, and how many times as fine they make the grid."""
_LEAST = 1e-30
"""The least δ for which a grid is made."""
_FINER, _LESS = 2.0, 100.0
"""The ratios of grid steps, and of δ, from which on a grid made for the greater one adds more than it should."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound; `coarse` if it may be loose: the grid had to be coarser than requested, or an event's
    distribution itself is loose."""

    value: float
    coarse: bool


def epsilon(work: Workload, delta: float, rdp_epsilon: float, order: float, tolerance: float = TOLERANCE) -> Bound:
    """Returns an upper bound of ε at δ. `rdp_epsilon` > 0 and `order` are the Rényi bound and its best order: they set
    the grid, and a finer one is taken where ε turns out to be far below that bound.

    Guarantees: the workload is (value, δ)-DP; when not `coarse`, the grid adds about `tolerance` of ε at
    most.
    Source: `loss`, `composition`.
    """
    theta = order - 1
    asked = grid_step(work, rdp_epsilon, theta, tolerance)
    step = _first_step(work, asked, _TAIL_SHARE * delta, lambda one: one.best_tilt(delta, theta))
    for _ in range(12):
        try:
            value, tilt = _epsilon_on(work, delta, step, theta)
        except (LossRangeError, NoPairError):
            break
        except (GridError, WindowError) as error:
            step = coarsen(step, error)
            continue
        coarse = step > asked
        wanted = asked
        while not coarse and value > 0 and (finer := grid_step(work, value, tilt, tolerance)) < wanted / _FINER:
            wanted = finer
            try:
                value, tilt = min((value, tilt), _epsilon_on(work, delta, finer, tilt))
            except (GridError, WindowError, LossRangeError):
                coarse = True
        coarse = coarse or not work.exact_losses or (value == math.inf and not work.exact_curves)
        return Bound(min(value, work.max_loss), coarse)
    return Bound(math.inf, True)


def find_directions(
    work: Workload, delta: float, epsilon: float, least: float
) -> tuple[Callable[[float], float], Callable[[float], float]] | None:
    """Returns the curves δ(ε), ε >= 0, of removing a unit and of adding one, tight near ε > 0 at δ and down to a δ
    of `least`; None where no grid has few enough points.

    Guarantees: in either direction every pair on the curve bounds the workload.
    """
    theta = 2 * math.log(1 / delta) / epsilon
    step = grid_step(work, epsilon, theta, TOLERANCE)
    for _ in range(12):
        try:
            directions = compose_directions(work, step, _TAIL_SHARE * max(least, 1e-200))
            tilts = [one.best_tilt(delta, theta) for one in directions]
            curves = [partial(_delta_of, one, tilt) for one, tilt in zip(directions, tilts, strict=True)]
            for one, tilt in zip(directions, tilts, strict=True):
                one.delta(epsilon, tilt)  # too many points show here
            return curves[0], curves[-1]
        except (LossRangeError, NoPairError):
            return None
        except (GridError, WindowError) as error:
            step = coarsen(step, error)
    return None


def _delta_of(composition: Composition, tilt: float, epsilon: float) -> float:
    try:
        return composition.delta(epsilon, tilt)
    except WindowError:  # far from where the curve is to be tight
        return min(composition.chernoff(epsilon, tilt * 2.0**power) for power in range(-2, 7))


def _epsilon_on(work: Workload, delta: float, step: float, theta: float) -> tuple[float, float]:
    """Returns an upper bound of ε at δ, on the grid with this step, and the tilt that it takes: `theta`, unless the
    Rényi curve is too loose to tell.

    Raises:
        GridError, LossRangeError, NoPairError, WindowError: see `compose_directions` and `Composition`.
    """
    worst, tilt = 0.0, theta
    for composition in compose_directions(work, step, _TAIL_SHARE * delta):
        if 0 < worst < math.inf and composition.chernoff(worst, theta) <= delta:
            continue  # this direction costs less
        result = composition.epsilon(delta, theta)
        if result is None or result > worst:
            worst = math.inf if result is None else result
            tilt = theta if work.exact_curves else composition.best_tilt(delta, theta)
    return worst, tilt


def deltas(
    work: Workload, epsilons: Sequence[float], guesses: Sequence[tuple[float, float]], scale: float
) -> list[Bound]:
    """Returns upper bounds of δ at each ε >= 0. `guesses`: the Rényi bound of δ and its best order for each; `scale`:
    a typical size of the composed loss, for the grid where ε is smaller.

    Guarantees: the workload is (ε, value)-DP for each pair.
    Source: `loss`, `composition`.
    """
    thetas, least = [order - 1 for _, order in guesses], min(guess for guess, _ in guesses)
    asked = min(grid_step(work, max(e, scale), t, TOLERANCE) for e, t in zip(epsilons, thetas, strict=True))
    step = _first_step(work, asked, _TAIL_SHARE * max(least, 1e-200), lambda one: thetas[0])
    best: list[Bound] = [Bound(1.0, True) for _ in epsilons]
    finest, refined = step / _FINEST, 0
    for _ in range(12):
        try:
            directions = compose_directions(work, step, _TAIL_SHARE * max(least, 1e-200))
            values = [0.0] * len(epsilons)
            for composition in directions:
                for i, (e, theta) in enumerate(zip(epsilons, thetas, strict=True)):
                    if e >= work.max_loss:
                        continue
                    values[i] = max(values[i], composition.delta(e, theta, values[i]))
        except (LossRangeError, NoPairError):
            break
        except (GridError, WindowError) as error:
            step = coarsen(step, error)
            continue
        coarse = step > asked or not work.exact_losses
        best = [
            min(old, Bound(value, coarse), key=lambda one: one.value) for old, value in zip(best, values, strict=True)
        ]
        if coarse or work.exact_curves:
            break
        # The Rényi curve was too loose a guess of δ, of the tilts and of the size of losses: these are better ones.
        smallest = min(max(value, _LEAST) for value in values)
        thetas = _find_tilts(directions, epsilons, thetas)
        scale = max(one.spread for one in directions)
        finer = min(grid_step(work, max(e, scale), t, TOLERANCE) for e, t in zip(epsilons, thetas, strict=True))
        finer = max(finer, finest)  # beyond the largest loss any tilt is as good
        refined += 1
        if refined == _ROUNDS or (smallest >= least / _LESS and finer >= step / _FINER):
            break
        least, step = min(least, smallest), min(step, finer)
        asked = step
    return best


def _find_tilts(directions: Sequence[Composition], epsilons: Sequence[float], thetas: Sequence[float]) -> list[float]:
    """Returns a tilt for each ε: those of the least and of the largest, and what is between on a line."""
    ends = {epsilons[i]: thetas[i] for i in (epsilons.index(min(epsilons)), epsilons.index(max(epsilons)))}
    tilts = {e: max(one.tilt_for(e, theta) for one in directions) or theta for e, theta in ends.items()}
    return np.interp(epsilons, sorted(tilts), [tilts[e] for e in sorted(tilts)]).tolist()


def _first_step(work: Workload, step: float, tail: float, tilt: Callable[[Composition], float]) -> float:
    """Returns `step`, or that of a coarser grid if very many events make a window with too many points: this is tried
    on a grid so coarse that it takes a small part of the time. Every grid gives an upper bound, a coarser one a looser
    bound.
    """
    if work.steps < _MANY:
        return step
    try:
        composition = compose_directions(work, _PROBE * step, tail)[0]
    except (GridError, LossRangeError, NoPairError):
        return step
    times = composition.share_of_bins(tilt(composition)) * _PROBE / _WIDER
    return coarsen(step, WindowError(times)) if times > 1 else step


def coarsen(step: float, error: GridError | WindowError) -> float:
    """Returns the step of the next grid after one with too many points: two, four or eight times as coarse, by the
    excess."""
    times = error.times if isinstance(error, WindowError) else 2.0
    return step * 2.0 ** min(max(1, math.ceil(math.log2(times))), 3)


def grid_step(work: Workload, epsilon: float, theta: float, tolerance: float) -> float:
    """Returns the grid step h: splitting over two points adds at most h²/8 θ(θ+1) per step to the cumulant K(θ), h²/12
    on average, hence n (θ+1) h²/12 to ε = K(θ)/θ + …
    """
    return math.sqrt(12 * tolerance * epsilon / ((work.steps + 1) * (theta + 1)))


def compose_directions(work: Workload, step: float, tail: float) -> list[Composition]:
    """Returns the composition when a unit is removed, and when one is added; only one if each pair is its own mirror
    image.

    Raises:
        GridError: too many points.
        LossRangeError: losses beyond what doubles can hold.
        NoPairError: an event without a dominating pair.
    """
    share = tail / (3 * (work.steps + 1))
    results = [(part.event.losses(work.neighbouring, step, share), part.count) for part in work.parts]
    if work.mu > 0:
        loss = pairs.gaussian(work.mu, step, share, MAX_BINS)
        mirrored = work.neighbouring is Neighbouring.REPLACE_ONE
        first = sum(part.event.integrates for part in work.parts)
        results.insert(first, (LossPair(loss, None if mirrored else swap_loss(loss)), 1))
    counts = [count for _, count in results]
    removed: list[Loss] = [pair.removed for pair, _ in results]
    one_way = all(pair.added is None for pair, _ in results)
    added = [] if one_way else [pair.removed if pair.added is None else pair.added for pair, _ in results]
    if max(abs(end) for loss in (*removed, *added) for end in (loss.losses[0], loss.losses[-1])) > LARGEST_LOSS:
        raise LossRangeError
    return [Composition(losses, counts, MAX_BINS) for losses in (removed, added) if losses]
