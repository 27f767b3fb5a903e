"""ε and δ of a workload by privacy-loss distributions: chooses the grid, composes both directions, takes
the worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dprecipe.mechanisms.encoded.theory import shift_pairs
from dprecipe.mechanisms.encoded.theory.shift_pairs import NoPairError
from dprecipe.privacy import pairs
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.composition import Composition, WindowError
from dprecipe.privacy.events import Encoded
from dprecipe.privacy.loss import LARGEST_LOSS, Loss, LossRangeError, mixed, sampled, sampled_added, swapped
from dprecipe.privacy.pairs import GridError
from dprecipe.privacy.workload import Sampled, Workload

TOLERANCE = 5e-5
"""Share of ε that the grid may add."""

_MOST_BINS = 1 << 21
_TAIL_SHARE = 1e-8
"""Share of δ that each direction's truncated tails may add."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound; `coarse` when the grid had to be coarser than asked, so that it may be loose."""

    value: float
    coarse: bool


def epsilon(work: Workload, delta: float, rdp_epsilon: float, order: float, tolerance: float = TOLERANCE) -> Bound:
    """Upper bound of ε at δ. `rdp_epsilon` > 0 and `order` are the Rényi bound and its best order: they set
    the grid.

    Guarantees: the workload is (value, δ)-DP; when not `coarse`, the grid adds about `tolerance` of ε at
    most.
    Source: `loss`, `composition`.
    """
    theta = order - 1
    step = _step(work, rdp_epsilon, theta, tolerance)
    for attempt in range(12):
        try:
            worst = 0.0
            for composition in _directions(work, step, _TAIL_SHARE * delta):
                if 0 < worst < math.inf and composition.chernoff(worst, theta) <= delta:
                    continue  # this direction costs less
                found = composition.epsilon(delta, theta)
                worst = max(worst, math.inf if found is None else found)
            return Bound(min(worst, work.largest_loss), attempt > 0)
        except (LossRangeError, NoPairError):
            break
        except (GridError, WindowError):
            step *= 2
    return Bound(math.inf, True)


def deltas(
    work: Workload, epsilons: Sequence[float], guesses: Sequence[tuple[float, float]], scale: float
) -> list[Bound]:
    """Upper bounds of δ at each ε >= 0. `guesses`: the Rényi bound of δ and its best order for each; `scale`:
    a typical size of the composed loss, for the grid where ε is smaller.

    Guarantees: the workload is (ε, value)-DP for each pair.
    Source: `loss`, `composition`.
    """
    thetas = [order - 1 for _, order in guesses]
    step = min(_step(work, max(e, scale), t, TOLERANCE) for e, t in zip(epsilons, thetas, strict=True))
    tail = _TAIL_SHARE * max(min(guess for guess, _ in guesses), 1e-200)
    for attempt in range(12):
        try:
            values = [0.0] * len(epsilons)
            for composition in _directions(work, step, tail):
                for i, (e, theta) in enumerate(zip(epsilons, thetas, strict=True)):
                    if e >= work.largest_loss:
                        continue
                    values[i] = max(values[i], composition.delta(e, theta, values[i]))
            return [Bound(value, attempt > 0) for value in values]
        except (LossRangeError, NoPairError):
            break
        except (GridError, WindowError):
            step *= 2
    return [Bound(1.0, True) for _ in epsilons]


def _step(work: Workload, epsilon: float, theta: float, tolerance: float) -> float:
    """Grid step h: splitting over two points adds at most h²/8 θ(θ+1) a step to the cumulant K(θ), h²/12 on
    average, hence n (θ+1) h²/12 to ε = K(θ)/θ + …
    """
    return math.sqrt(12 * tolerance * epsilon / ((work.steps + 1) * (theta + 1)))


def _directions(work: Workload, step: float, tail: float) -> list[Composition]:
    replaced = work.neighbouring is Neighbouring.REPLACE_ONE
    if replaced and work.encoded:
        raise NoPairError
    share = tail / (3 * (work.steps + 1))
    removed: list[Loss] = [_one_step(s, replaced, step, share) for s in work.sampled]
    counts = [s.count for s in work.sampled]
    if work.mu > 0:
        removed.append(pairs.gaussian(work.mu, step, share, _MOST_BINS))
        counts.append(1)
    added = [] if replaced else [swapped(loss) for loss in removed]  # a replacing pair is its own mirror image
    for phase in work.encoded:
        one, other = _encoded(phase.event, step, share)
        removed.append(one)
        added.append(other)
        counts.append(phase.count)
    if max(abs(end) for loss in (*removed, *added) for end in (loss.losses[0], loss.losses[-1])) > LARGEST_LOSS:
        raise LossRangeError
    return [Composition(losses, counts, _MOST_BINS) for losses in (removed, added) if losses]


def _one_step(steps: Sampled, replaced: bool, step: float, tail: float) -> Loss:
    """One sampled Gaussian step, when a unit is removed or replaced.

    Where lots are cut, fix whether the other units that join fill the lot, and which of them then stay. If they don't,
    the unit joins as it would without a cap; if they do, it joins with no larger a probability and takes the place of
    one of them, so that the sum moves by up to two clip norms.

    Raises:
        GridError: too many points.
    """
    if steps.fixed:
        return pairs.fixed_size_gaussian(steps.q, steps.sigma, step, tail, _MOST_BINS)
    pair = pairs.poisson_gaussian_replaced if replaced else pairs.poisson_gaussian
    usual = pair(steps.q, steps.sigma, step, tail, _MOST_BINS)
    if steps.full == 0:
        return usual
    return mixed(usual, pair(steps.q, steps.sigma / 2, step, tail, _MOST_BINS), steps.full)


def _encoded(event: Encoded, step: float, tail: float) -> tuple[Loss, Loss]:
    """One step, sampled or not, when a unit is removed, and when one is added.

    Raises:
        GridError: too many points.
        NoPairError: as `shift_pairs.encoded`.
    """
    q, whole = event.sampling_rate, shift_pairs.encoded(event, tail)
    largest = float(whole.losses[-1])
    span = 2 * largest if q == 1 else math.log1p(q * math.expm1(largest)) - math.log1p(-q)
    if span > _MOST_BINS * step:
        raise GridError
    return sampled(whole, q, step), sampled_added(whole, q, step)
