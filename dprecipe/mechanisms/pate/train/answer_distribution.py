"""The exact distribution of one query's outcome, by quadrature, and how far one moved vote changes it.

For audits: the noise is that of the event that is charged, and nothing in `theory` is called. The aggregator itself
decides whether a check passes; bisection finds the noise at which its decision changes.

Axes: M classes, H histograms, O outcomes (the classes, then "not answered"), A orders, P pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pate.aggregators import Aggregator, Scores
from dprecipe.mechanisms.pate.events import NoisyMax

Floats = NDArray[np.float64]
Histogram = tuple[int, ...]

NODES = 24
"""Quadrature nodes in each interval, which is half a noise scale long."""
REACH = 40.0
"""Noise scales beyond the outermost counts to which the integral extends."""
FARTHEST = 1e9
"""Largest noise of a check, in votes, that the bisection considers."""
TINY = 1e-280


def release_distribution(aggregator: Aggregator, counts: Histogram, expected_M: Scores | None = None) -> Floats:
    """Returns the probability of each outcome, (O,)."""
    answers_M = answer_distribution(aggregator.answer, counts)
    if aggregator.check is None:
        return np.append(answers_M, 0.0)
    passed, failed = check_distribution(aggregator, counts, expected_M)
    return np.append(passed * answers_M, failed)


def answer_distribution(event: NoisyMax, counts: Histogram) -> Floats:
    """Returns the probability that each class has the most votes after the event's noise, (M,)."""
    from scipy import stats

    noise, scale = (stats.norm if event.family == "gaussian" else stats.laplace), event.noise_multiplier
    values, place, sizes = np.unique(counts, return_inverse=True, return_counts=True)
    low, high = float(values[0]) - REACH * scale, float(values[-1]) + REACH * scale
    edges = np.unique(np.concatenate([np.arange(low, high + scale, scale / 2), values.astype(np.float64)]))
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    half, middle = np.diff(edges)[:, None] / 2, (edges[1:] + edges[:-1])[:, None] / 2
    x, mass = (middle + half * nodes).ravel(), (half * weights).ravel()
    below = np.stack([noise.logcdf((x - value) / scale) for value in values])
    everyone = sizes @ below
    chances = [
        float(mass @ np.exp(noise.logpdf((x - value) / scale) + everyone - below[row])) / scale
        for row, value in enumerate(values)
    ]
    return np.array(chances)[place.reshape(-1)]


def check_distribution(
    aggregator: Aggregator, counts: Histogram, expected_M: Scores | None = None
) -> tuple[float, float]:
    """Returns the probability that a query is answered, and the probability that it is not."""
    from scipy import stats

    if aggregator.check is None:
        return 1.0, 0.0
    counts_1M = np.array([counts], np.int32)
    expected_1M = None if expected_M is None else expected_M[None]

    def passes(noise: float) -> bool:
        return bool(aggregator.passes(counts_1M, expected_1M, np.array([noise]))[0])

    low, high = -FARTHEST, FARTHEST
    if passes(low):
        return 1.0, 0.0
    if not passes(high):
        return 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    at = high / aggregator.check.noise_multiplier
    return float(stats.norm.sf(at)), float(stats.norm.cdf(at))


def small_histograms(teachers: int, classes: int) -> list[Histogram]:
    """Lists every histogram of the votes of `teachers` teachers over `classes` classes."""
    cuts = itertools.combinations(range(teachers + classes - 1), classes - 1)
    return [tuple(b - a - 1 for a, b in itertools.pairwise((-1, *cut, teachers + classes - 1))) for cut in cuts]


def list_moves(histograms: Sequence[Histogram]) -> list[tuple[int, int]]:
    """Lists the pairs of histograms, by index and in both orders, that differ by one moved vote."""
    places = {counts: number for number, counts in enumerate(histograms)}
    moves = []
    for counts, number in places.items():
        for source, target in itertools.permutations(range(len(counts)), 2):
            moved = list(counts)
            moved[source] -= 1
            moved[target] += 1
            if (other := places.get(tuple(moved))) is not None:
                moves.append((number, other))
    return moves


def renyi_divergences(one_O: Floats, other_O: Floats, orders: Sequence[float]) -> Floats:
    """Returns D_α of the first distribution from the second, (A,); infinite if only the first can have some outcome."""
    kept = one_O > TINY
    if np.any(other_O[kept] <= TINY):
        return np.full(len(orders), np.inf)
    p, losses = one_O[kept], np.log(one_O[kept] / other_O[kept])
    alphas = np.asarray(orders, dtype=np.float64)
    powers = np.log(p) + (alphas[:, None] - 1) * losses
    largest = powers.max(axis=1, keepdims=True)
    sums = largest[:, 0] + np.log(np.exp(powers - largest).sum(axis=1))
    return np.asarray(np.maximum(sums / (alphas - 1), 0.0))


def hockey_stick(one_O: Floats, other_O: Floats, epsilon: float) -> float:
    """Returns δ(ε) of the first distribution from the second."""
    return float(np.maximum(one_O - math.exp(epsilon) * other_O, 0.0).sum())


def information(one_O: Floats, other_O: Floats) -> float:
    """Measures how well many draws tell two distributions apart: 4 times the squared distance of their square roots.

    For two close normal distributions this is μ².
    """
    return 4 * float(np.square(np.sqrt(one_O) - np.sqrt(other_O)).sum())


def likelihood_ratios(one_O: Floats, other_O: Floats) -> Floats:
    """Returns the log of the ratio of the first distribution to the second, for each outcome, (O,)."""
    result: Any = np.log(np.maximum(one_O, TINY) / np.maximum(other_O, TINY))
    return np.asarray(result)
