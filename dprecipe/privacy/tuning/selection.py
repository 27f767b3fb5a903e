"""Profile bounds of the best of K independent runs: δ(ε) of the release from δ(ε) of one run.

Notation: Q, Q' one run's output on two neighbouring data sets, A, A' that of the release; f the generating function of
K; x the probability under Q that a run is better than the one released, x' <= F(x) that under Q', F(x) the largest
Q'-probability of an event of Q-probability x; l the loss log dQ/dQ'.

A has density f'(1-x) against Q, and f' increases, so that

    δ_A(ε) <= E_Q h(exp(ε - l)),   h(s) = max_x (f'(1-x) - s f'(1-F(x)))_+.

h is a maximum of lines: Σ w_j (1 - s/s_j)_+ with weights w_j > 0 that add up to E[K], whatever ε is. So

    δ_A(ε) <= Σ w_j δ(ε - log s_j):

the release has the profile of one run, mixed over shifts.

Source: Koskela, Redberg & Wang 2024 (truncated negative binomial); the order of runs by quality is total, ties being
broken at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dprecipe.privacy.hockey_stick import LARGEST, SLACK, HockeyStick, lower_hull
from dprecipe.privacy.loss import Array
from dprecipe.privacy.tuning.runs import NegativeBinomialRuns, RunDistribution

_FINE = 5e-4
"""The most that the logarithm of a density may move within a cell of x, and that this adds to ε."""
_MAX_CELLS = 12_000
_SCAN = 4000
_STEPS, _MAX_STEPS = 3000, 16_000
"""The numbers of points of the grid of shifts: over the range of one run's losses, and in all."""
MIN_WEIGHT = 1e-22
_FAINT = 1e-18
"""The share of E[K] below which a density's logarithm is ignored."""


@dataclass(frozen=True, slots=True, eq=False)
class ShiftMixture:
    """The shifts log s_j of one run's profile, with weights: `weights[j]` at `step * (first + j)`, and `constant` for
    s = ∞, which no shift reduces."""

    step: float
    first: int
    weights: Array
    constant: float


def best_of_runs(curve: HockeyStick, reverse: HockeyStick, runs: RunDistribution) -> HockeyStick:
    """Returns the release's δ(ε) at ε >= 0, if one run's is `curve`, and `reverse` in reverse.

    x is cut into cells: f'(1-x) is taken at a cell's lower end, f'(1-F(x)) at its upper end.

    Guarantees: an upper bound at every ε >= 0 and for any cells; mass at an infinite loss counts E[K] times.
    Source: module.
    """
    z_N = _cell_ends(curve, reverse, runs)
    x_N, rest_N = _normal(z_N), _normal(-z_N)
    a_N = runs.density(x_N, rest_N) * (1 + SLACK)
    b_N = _least_density(curve, reverse, runs, x_N, rest_N) * (1 - SLACK)
    # the first cell begins at x = 0, the last one ends at x = 1
    a_N = np.concatenate([[runs.mean * (1 + SLACK)], a_N])
    b_N = np.concatenate([b_N, [float(runs.density(np.array(1.0), np.array(0.0))) * (1 - SLACK)]])
    return _mixed_profile(curve, _mixture(curve, a_N, b_N))


def _mixture(curve: HockeyStick, a_N: Array, b_N: Array) -> ShiftMixture:
    """Writes max_i (a_i - s b_i)_+ as Σ w_j (1 - s/s_j)_+, from the corners of the upper hull of the points (b, a).

    With v = w/s a term is v (s_j - s)_+, convex in s_j: split over two points of a grid that keep Σ v and Σ v s, it
    only grows, and by the square of the step.
    """
    points_b, points_a = np.append(b_N, 0.0), np.append(a_N, 0.0)
    order = np.lexsort((-points_a, points_b))
    b, a = points_b[order], points_a[order]
    first = np.append(True, np.diff(b) > 0)  # the highest of the points with the same b
    b, a = b[first], a[first]
    constant = float(a[0])  # where b = 0
    corners = lower_hull(b, -a)
    b, a = b[corners], a[corners]
    top = int(np.argmax(a))
    weights, v = np.diff(a[: top + 1]), np.diff(b[: top + 1])
    some = weights > 0
    shifts = np.log(weights[some]) - np.log(v[some]) + SLACK
    reach = float(curve.epsilons[-1] - curve.epsilons[0])
    shifts = np.maximum(shifts, -2 * reach)  # a larger shift is safe, and this far beyond the curve's end all are alike
    farthest = min(float(shifts.max(initial=-LARGEST)), LARGEST)  # there may be no line but the constant
    step = max(reach / _STEPS, (float(curve.epsilons[-1]) + farthest) / _MAX_STEPS)
    # a shift so large that one run's δ there is hardly below 1
    apart = shifts > min(LARGEST, _MAX_STEPS * step)
    constant += float(weights[some][apart].sum())
    shifts, v = shifts[~apart], weights[some][~apart] * np.exp(-shifts[~apart])
    k = np.floor(shifts / step)
    begin = int(k.min()) if len(k) else 0
    index = (k - begin).astype(np.int64)
    upper = np.clip(np.expm1(shifts - k * step) / math.expm1(step), 0.0, 1.0)
    size = int(index.max()) + 2 if len(k) else 1
    split = np.bincount(index, v * (1 - upper), size)
    split = split + np.bincount(index + 1, v * upper, size) if len(k) else split
    return ShiftMixture(step, begin, split * np.exp(step * (begin + np.arange(size))), constant)


def _mixed_profile(curve: HockeyStick, mixture: ShiftMixture) -> HockeyStick:
    """Returns Σ w_j δ(ε - log s_j) at ε >= 0, on the mixture's grid."""
    step, size = mixture.step, len(mixture.weights)
    falls = np.append(np.cumsum(mixture.weights[::-1])[::-1], 0.0)
    used = int(np.flatnonzero(falls > MIN_WEIGHT * falls[0])[-1]) if falls[0] > 0 else 0
    last = max(math.ceil(float(curve.epsilons[-1]) / step) + mixture.first + used, 2)
    last = min(last, math.floor(LARGEST / step))
    # δ at step * (k - first - j) for all k and j
    lows = np.arange(-mixture.first - size + 1, last - mixture.first + 1)
    deltas = np.convolve(curve.at(step * lows), mixture.weights, mode="valid")
    return HockeyStick(step * np.arange(last + 1), np.minimum(deltas * (1 + 1e-9) + mixture.constant, 1.0))


def _least_density(curve: HockeyStick, reverse: HockeyStick, runs: RunDistribution, x_N: Array, rest_N: Array) -> Array:
    """Returns lower bounds of f'(1-F(x))."""
    image = reverse.largest_image(x_N)
    left = np.maximum(1 - image * (1 + SLACK), curve.least_image(rest_N))
    return runs.density(np.maximum(np.minimum(image, 1 - left), 0.0), left)


def _cell_ends(curve: HockeyStick, reverse: HockeyStick, runs: RunDistribution) -> Array:
    """Returns z, with x = Φ(z), such that neither density moves by more than `_FINE` within a cell, unless there are
    too many cells."""
    z_N = np.unique(np.concatenate([np.linspace(-37, 9, _SCAN), np.linspace(-6, 6, _SCAN)]))
    x_N, rest_N = _normal(z_N), _normal(-z_N)
    faint = _FAINT * runs.mean
    moved = np.zeros(len(z_N))
    for density in (runs.density(x_N, rest_N), _least_density(curve, reverse, runs, x_N, rest_N)):
        moved += np.maximum.accumulate(-np.log(np.maximum(density, faint)))
    moved -= moved[0]
    cells = int(min(max(moved[-1] / _FINE, 16), _MAX_CELLS))
    ends = np.interp(np.linspace(0, moved[-1], cells + 1), moved, z_N)
    return np.unique(ends)


def _normal(z_N: Array) -> Array:
    from scipy import special

    return np.asarray(special.ndtr(z_N))


@dataclass(frozen=True, slots=True)
class TwoTerms:
    """The two terms of ε = `first` + (1 + η) `second`."""

    epsilon: float
    first: float
    second: float


def second_term(curve: HockeyStick, runs: NegativeBinomialRuns) -> float:
    """Returns the least e with δ(e) <= γ (exp(e) - 1)/(1 - γ); infinite where there is none.

    Guarantees: it holds at the result.
    """
    ratio = runs.gamma / (1 - runs.gamma)

    def holds(e: float) -> bool:
        return float(curve.at(np.array(e))) <= ratio * math.expm1(e) * (1 - SLACK)

    return _least_where(holds, LARGEST)


def simple_epsilon(curves: tuple[HockeyStick, HockeyStick], runs: NegativeBinomialRuns, delta: float) -> TwoTerms:
    """Returns ε at δ in closed form: if δ(e2) <= γ (exp(e2) - 1)/(1 - γ), then δ_A(e1 + (1+η) e2) <= E[K] δ(e1), δ
    being that of either direction. 0 < delta < 1.

    Source: Koskela, Redberg & Wang 2024, Theorem 9 in substance: γ + (1-γ) x' <= exp(e2) (γ + (1-γ) x).
    """
    share = delta / runs.mean * (1 - 1e-9)
    second = max(second_term(curve, runs) for curve in curves)
    first = max(least_epsilon(curve, share) for curve in curves)
    return TwoTerms((first + (1 + runs.shape) * second) * (1 + SLACK), first, second)


def least_epsilon(curve: HockeyStick, delta: float) -> float:
    """Returns the least ε >= 0 with δ(ε) <= delta; infinite where there is none."""
    return _least_where(lambda e: float(curve.at(np.array(e))) <= delta, LARGEST)


def _least_where(holds: Callable[[float], bool], limit: float) -> float:
    """Returns the least e >= 0, up to 1e-10, from which on `holds` is true; infinity above `limit`."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2 * high
        if high > limit:
            return math.inf
    while high - low > 1e-11 * max(high, 1e-3):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
