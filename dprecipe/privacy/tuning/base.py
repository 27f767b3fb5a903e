"""The δ(ε) of one run, in both directions: the input to the bounds of the best of several runs.

The Rényi bound of the best is here too: for comparison, and for composition if there are no distributions. Source:
Papernot & Steinke 2022, Theorems 2 and 6. Notation: α order, r(α) one run's Rényi curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dprecipe.privacy import accountants, conversion, curves, gdp, pld
from dprecipe.privacy.accountants import rdp_curve
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.composition import Composition, Window, WindowError
from dprecipe.privacy.events import Charge
from dprecipe.privacy.hockey_stick import (
    LARGEST,
    MAX_KNOTS,
    MIN_DELTA,
    HockeyStick,
    lower_of,
    raise_curve,
    tabulate_curve,
)
from dprecipe.privacy.loss import Array, GridError, LossRangeError, NoPairError
from dprecipe.privacy.tuning.runs import FixedRuns, NegativeBinomialRuns, RunDistribution
from dprecipe.privacy.workload import Workload, summarise_charges, uncap_charges

Curves = tuple[HockeyStick, HockeyStick]
"""The curves δ(ε) of removing a unit and of adding one; the same curve twice if they do not differ."""

_USUAL, _SMALL = 1e-6, 1e-13
"""The values of δ for which the composed distribution is tilted."""
_KNOTS = 4000
_SLOW_KNOTS = 160
"""The number of knots of a profile that is slow at each ε."""


@lru_cache(maxsize=64)
def base_curves(charges: tuple[Charge, ...], neighbouring: Neighbouring) -> Curves:
    """Returns δ(ε) of all charges together, in both directions: by composed privacy-loss distributions; for unsampled
    Gaussians exactly; for events without such a distribution by the bound that there is.

    Guarantees: upper bounds at every ε, negative ones included. Where no bound is known they are 1.
    """
    work = summarise_charges(charges, neighbouring)
    if not work.bounded:
        nothing = HockeyStick(np.array([-1.0, 1.0]), np.ones(2))
        return nothing, nothing
    spill = work.ever_full
    if not spill:
        return _curves_of(work, charges)
    rest = uncap_charges(charges)
    first, second = base_curves(rest, neighbouring)
    first, second = raise_curve(first, spill), raise_curve(second, spill)
    if spill <= MIN_DELTA:
        return first, second
    direct = _curves_of(work, charges)
    return lower_of(direct[0], first), lower_of(direct[1], second)


def _curves_of(work: Workload, charges: tuple[Charge, ...]) -> Curves:
    if work.gaussian:
        curve = gaussian_curve(work.mu)
        return curve, curve
    if not work.whole and work.has_losses and not work.needs_group_privacy:
        result = _by_losses(work)
        if result is not None:
            return result
    curve = _by_accountants(work, charges)
    return curve, curve


def gaussian_curve(mu: float) -> HockeyStick:
    """Returns the curve of N(μ, 1) against N(0, 1), or the reverse. μ = 0: nothing is revealed."""
    reach = min(mu * mu / 2 + 9.5 * mu, LARGEST)
    return tabulate_curve(lambda e: gdp.delta(mu, e), np.linspace(0.0, max(reach, 1e-9), _KNOTS))


def _by_losses(work: Workload) -> Curves | None:
    """Returns the curves by privacy-loss distributions; None if there is none after all, or its grid is too large."""
    orders = curves.DEFAULT_ORDERS
    rdp_A = accountants.rdp_curve(work, orders)
    usual = conversion.epsilon(orders, rdp_A, _USUAL)
    small = conversion.epsilon(orders, rdp_A, _SMALL)
    if not 0 < small.value < math.inf:
        return None
    step = pld.grid_step(work, max(usual.value, small.value / 4), usual.order - 1, pld.TOLERANCE)
    for _ in range(12):
        try:
            directions = pld.compose_directions(work, step, MIN_DELTA)
            pairs = [_by_windows(one, step, (0.0, usual.order - 1, small.order - 1)) for one in directions]
            return pairs[0], pairs[-1]
        except (LossRangeError, NoPairError):
            return None
        except (GridError, WindowError) as error:
            step = pld.coarsen(step, error)
    return None


def _by_windows(composition: Composition, step: float, tilts: Sequence[float]) -> HockeyStick:
    """Returns, at each loss of the grid, the least of what windows around several losses give."""
    tables = [_table_of(composition.window(tilt), step) for tilt in tilts]
    first = min(begin for begin, _ in tables)
    last = max(begin + len(deltas) for begin, deltas in tables)
    best = np.ones(last - first)
    for begin, deltas in tables:
        part = best[begin - first : begin - first + len(deltas)]
        np.minimum(part, deltas, out=part)
    index = np.arange(first, last)
    keep = np.flatnonzero((np.abs(step * index) <= LARGEST) & (best < 1))
    if len(keep) < 2:
        raise WindowError
    # up to the point where the curve stops falling
    ends = keep[np.flatnonzero(best[keep] > best[keep[-1]] * (1 + 1e-6) + MIN_DELTA)]
    keep = keep[: int(np.searchsorted(keep, ends[-1])) + 2] if len(ends) else keep[:2]
    falling = np.minimum.accumulate(best[keep])
    if len(keep) > MAX_KNOTS:  # as many where δ falls as elsewhere
        logs = -np.log(np.maximum(falling, MIN_DELTA))
        moved = np.linspace(0, 1, len(keep)) + (logs - logs[0]) / max(logs[-1] - logs[0], 1e-9)
        chosen = np.unique(np.searchsorted(moved, np.linspace(0, moved[-1], MAX_KNOTS)[:-1]))
        chosen = np.unique(np.append(chosen, len(keep) - 1))
        keep, falling = keep[chosen], falling[chosen]
    return HockeyStick(step * index[keep], falling)


def _table_of(window: Window, step: float) -> tuple[int, Array]:
    """Returns δ at each loss of a window's grid, like `Window.delta`: the grid's first place, and upper bounds."""
    above = np.append(window.above[1:], 0.0)
    weighted = np.append(window.weighted[1:], 0.0)
    apart = window.losses - window.low
    usable = apart < LARGEST
    value = above - np.exp(np.minimum(apart, LARGEST)) * weighted
    deltas = np.maximum(value, 0.0) * (1 + 1e-10) + 1e-14 * above + window.charge
    return round(window.low / step), np.where(usable, np.minimum(deltas, 1.0), 1.0)


def _by_accountants(work: Workload, charges: tuple[Charge, ...]) -> HockeyStick:
    """Returns the worse of both directions, by the accountants, at ε >= 0."""
    asked = work.neighbouring
    reach = accountants.epsilon(charges, MIN_DELTA, asked, "rdp")
    reach = min(reach if math.isfinite(reach) else LARGEST, LARGEST)
    if work.whole:
        epsilons = np.unique(
            np.concatenate([[0.0], np.geomspace(max(reach, 1e-6) * 1e-3, max(reach, 1e-6), _SLOW_KNOTS)])
        )
    else:
        epsilons = np.linspace(0.0, max(reach, 1e-6), _KNOTS // 4)
    answers = accountants.delta_answers(charges, epsilons.tolist(), asked, "pld" if work.whole else "rdp")
    table = dict(zip(epsilons.tolist(), (answer.value for answer in answers), strict=True))
    return tabulate_curve(table.__getitem__, epsilons)


ORDERS = tuple(sorted({*curves.DEFAULT_ORDERS, *curves.HIGH_ORDERS}))


def selected_curve(
    base: tuple[Charge, ...], runs: RunDistribution, orders: Sequence[float], neighbouring: Neighbouring
) -> Array:
    """Returns r(α) of the best of K runs with the charges `base`, at orders α > 1; infinite where one run has no curve.

    Truncated negative binomial: r(α) + (1+η) min_β ((1-1/β) r(β) + log(1/γ)/β) + log(E[K])/(α-1). Poisson of rate λ,
    not truncated: p(α) = r(α) + λ δ + log(λ)/(α-1), δ that of one run at ε = log(1 + 1/(α-1)), by its profile.
    Truncated: the release is that of Poisson's if there is a run; having none has the same probability exp(-λ) on both
    data sets; so e^{(α-1) p} = exp(-λ) + (1 - exp(-λ)) e^{(α-1) t}, solved for t(α). Both are made to rise with α: a
    Rényi divergence is at most that of any larger order. A fixed number: composition.

    Guarantees: bounds both directions.
    """
    asked = np.asarray(orders, dtype=np.float64)
    work = summarise_charges(base, neighbouring)
    if not work.bounded:
        return np.full(len(asked), np.inf)
    if isinstance(runs, FixedRuns):
        return runs.count * rdp_curve(work, orders)
    both = np.array(sorted({*ORDERS, *asked.tolist()}))
    one = rdp_curve(work, tuple(both.tolist()))
    if isinstance(runs, NegativeBinomialRuns):
        result = one + np.log(runs.mean) / (both - 1)
        result = result + (1 + runs.shape) * float(np.min((1 - 1 / both) * one - np.log(runs.gamma) / both))
    else:
        at = np.log1p(1 / (both - 1))
        missed = np.maximum(*(curve.at(at) for curve in base_curves(base, neighbouring)))
        logs = (both - 1) * (one + runs.rate * missed) + np.log(max(runs.rate, 1.0))
        result = (logs + np.log1p(-np.exp(-runs.rate - logs)) - np.log(runs.some)) / (both - 1)
    rising = np.minimum.accumulate(result[::-1])[::-1]
    return np.asarray(rising[np.searchsorted(both, asked)])
