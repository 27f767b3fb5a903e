"""Hockey-stick curves: δ(ε) of a pair of distributions as a table of upper bounds, for ε of either sign.

A hockey-stick curve is convex in exp(ε), falls, and is 1 at exp(ε) = 0. So the chord between two upper bounds is an
upper bound, whichever points are kept: a table may be thinned, and merged with another by the least of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dprecipe.privacy.loss import Array, GridError, Loss

MAX_KNOTS = 1 << 13
MAX_LOSSES = 1 << 20
"""The most points in a grid of losses."""
MIN_DELTA = 1e-20
"""The least δ of a table; the mass beyond it is charged."""
LARGEST = 600.0
"""The largest |ε| of a table: beyond it exp(ε) leaves the range of doubles."""
SLACK = 1e-12
"""More than the relative rounding error of what is computed here."""


@dataclass(frozen=True, slots=True, eq=False)
class HockeyStick:
    """A table of upper bounds: δ <= `deltas[k]` at ε = `epsilons[k]`, which increase. In functions here, `reverse` is
    the table of the reversed pair."""

    epsilons: Array
    deltas: Array

    def at(self, epsilon: Array) -> Array:
        """Returns upper bounds of δ at any ε, of either sign or infinite."""
        e_N, d_N = self.epsilons, self.deltas
        e = np.asarray(epsilon, dtype=np.float64)
        k = np.clip(np.searchsorted(e_N, e, side="right") - 1, 0, len(e_N) - 2)
        # the share of the upper end, in exp(ε)
        inside = np.clip(e, e_N[0], e_N[-1])
        share = np.clip(np.expm1(inside - e_N[k]) / np.expm1(e_N[k + 1] - e_N[k]), 0.0, 1.0)
        chord = d_N[k] + share * (d_N[k + 1] - d_N[k])
        below = 1 - (1 - d_N[0]) * np.exp(np.minimum(e - e_N[0], 0.0))
        return np.asarray(np.minimum(np.where(e < e_N[0], below, chord) * (1 + SLACK), 1.0))

    def largest_image(self, share: Array) -> Array:
        """Returns upper bounds of Q'(S) over events S with Q(S) = `share`, if this table is δ of Q' against Q.

        Guarantees: Q'(S) <= exp(ε) Q(S) + δ(ε) for every ε; the result is nearly the least of these bounds.
        """
        slopes_N = np.exp(self.epsilons)
        ends = -np.diff(self.deltas) / np.diff(slopes_N)
        k = _line_for(ends, share)
        return np.asarray(np.minimum((slopes_N[k] * share + self.deltas[k]) * (1 + SLACK), 1.0))

    def least_image(self, share: Array) -> Array:
        """Returns lower bounds of Q'(S) over events S with Q(S) = `share`, if this table is δ of Q against Q'.

        Guarantees: Q'(S) >= exp(-ε) (Q(S) - δ(ε)) for every ε.
        """
        e_N, d_N = self.epsilons, self.deltas
        rise = np.expm1(np.diff(e_N))
        ends = d_N[:-1] + (d_N[:-1] - d_N[1:]) / rise
        k = _line_for(ends, share)
        return np.asarray(np.maximum(np.exp(-e_N[k]) * (share * (1 - SLACK) - d_N[k]), 0.0) * (1 - SLACK))


def _line_for(ends: Array, share: Array) -> Array:
    """Returns the index of the line to use for each share: lines change at `ends`, which fall up to rounding."""
    falling = np.minimum.accumulate(ends)
    return np.asarray(np.searchsorted(-falling, -np.asarray(share)))


def tabulate_curve(delta: Callable[[float], float], epsilons: Array) -> HockeyStick:
    """Tabulates a symmetric pair, or the worse of both directions, from its δ at ε >= 0.

    δ of the other direction at -ε is 1 - exp(-ε) + exp(-ε) δ(ε).
    """
    above = np.array([delta(float(e)) for e in epsilons])
    return _mirrored(np.asarray(epsilons, dtype=np.float64), above)


def _mirrored(e_N: Array, d_N: Array) -> HockeyStick:
    below = -np.expm1(-e_N) + np.exp(-e_N) * d_N
    keep = e_N[::-1] > 0
    return HockeyStick(
        np.concatenate([-e_N[::-1][keep], e_N]), np.minimum(np.concatenate([below[::-1][keep], d_N]) * (1 + SLACK), 1.0)
    )


def raise_curve(curve: HockeyStick, delta: float) -> HockeyStick:
    """Returns the curve raised by `delta` at every ε."""
    return HockeyStick(curve.epsilons, np.minimum(curve.deltas + delta, 1.0))


def lower_of(one: HockeyStick, other: HockeyStick) -> HockeyStick:
    """Returns the lesser of two bounds of the same curve."""
    epsilons = np.union1d(one.epsilons, other.epsilons)
    return HockeyStick(epsilons, np.minimum(one.at(epsilons), other.at(epsilons)))


def lower_hull(x_N: Array, y_N: Array) -> list[int]:
    """Returns the indices of the corners of the greatest convex function below all points; x increases.

    Source: Andrew 1979 (monotone chain).
    """
    xs, ys = x_N.tolist(), y_N.tolist()
    corners: list[int] = []
    for k in range(len(xs)):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (ys[b] - ys[a]) * (xs[k] - xs[b]) >= (ys[k] - ys[b]) * (xs[b] - xs[a]):
                corners.pop()
            else:
                break
        corners.append(k)
    return corners


def pair_losses(curve: HockeyStick, reverse: HockeyStick, step: float, tail: float) -> Loss:
    """Returns the losses, on the grid of `step`, of a pair whose δ(ε) is no less than `curve`, and in reverse no less
    than `reverse`, both tables of ε >= 0; where a table ends, or falls to `tail`, the rest is charged to infinity.

    Guarantees: it dominates every pair that both tables bound. Such a pair's δ, as a function of exp(ε), is convex: it
    lies below the greatest convex function below any points above it, and that function is the curve of a pair.

    Source: Zhu, Dong & Wang 2022, Lemma 20 (a curve's pair); Doroshenko et al. 2022.

    Raises:
        GridError: too many points.
    """
    last = max(_end_of(curve, step, tail), 1)
    first = -max(_end_of(reverse, step, tail), 1)
    if last - first > MAX_LOSSES:
        raise GridError
    e_N = step * np.arange(first, last + 1)
    above, below = np.maximum(e_N, 0.0), np.minimum(e_N, 0.0)
    deltas = np.where(e_N >= 0, curve.at(above), -np.expm1(below) + np.exp(below) * reverse.at(-below))
    deltas = np.minimum(deltas * (1 + 1e-10), 1.0)
    # δ as a function of exp(ε), starting at (0, 1); constant after its last point
    slopes = np.concatenate([[0.0], np.exp(e_N)])
    heights = np.append(1.0, np.minimum.accumulate(deltas))
    corners = np.array(lower_hull(slopes, heights))
    falls = np.append(np.diff(heights[corners]) / np.diff(slopes[corners]), 0.0)
    masses = np.zeros(len(e_N))
    inner = corners[1:]
    masses[inner - 1] = slopes[inner] * np.diff(falls)
    return Loss(step, first, np.maximum(masses, 0.0), float(heights[-1]), max(1.0 + float(falls[0]), 0.0))


def _end_of(curve: HockeyStick, step: float, tail: float) -> int:
    """Returns the first loss of the grid with no more than `tail` beyond it, or the end of the curve."""
    end = int(np.argmax(curve.deltas <= max(tail, float(curve.deltas[-1]) * (1 + 1e-6) + MIN_DELTA)))
    return math.ceil(min(float(curve.epsilons[end]), LARGEST) / step)
