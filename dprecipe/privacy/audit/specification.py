"""The test of the specification: whether the canaries of one run score as those of the specified program do.

The specified program adds Gaussian noise to sums in which every canary that is in has a coordinate of its own. Scores
are then independent and normal with one variance, and the means of those that are in and of those that are out differ
by μ standard deviations. So the difference of the means over the pooled deviation, times sqrt(n_in n_out / n), has
Student's t distribution with n - 2 degrees of freedom and non-centrality μ sqrt(n_in n_out / n).

It bounds no ε. A program that keeps to its claim, but scores all canaries with one common level, is inconsistent with
the specification in a fourth of its runs. An alarm says that the guarantee or the Gaussian model is broken: either way
the program is not the specified one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.results import Scores, SpecificationTest
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.noisy_sums import GaussianEvent
from dprecipe.privacy.rounding import round_down, round_up

_LEAST = 1e-300
"""The least p-value that is stated."""
_POINTS_EACH = 8
"""Points of the grid for each width of what is integrated."""
_MAX_POINTS = 400_000


def squared_separation(event: Event, relation: Neighbouring) -> float | None:
    """Returns the squared μ of the scores of one event: as large as for one unit, whose gradient fills the clip norm;
    None where a score is not Gaussian (batches are sampled, noise is not Gaussian), or has parts."""
    return event.squared_mu(1, relation) if isinstance(event, GaussianEvent) else None


def specified_mu(charges: Iterable[Charge], relation: Neighbouring) -> float:
    """Returns the most by which these events separate the canaries, rounded up; events that are not of canaries add
    nothing."""
    squares = ((charge.count, squared_separation(charge.event, relation) or 0.0) for charge in charges)
    return round_up(math.sqrt(math.fsum(count * square for count, square in squares)))


def chance_of_difference(scores: Scores, mu: float) -> float:
    """Returns the probability of as large a difference, if scores are normal and their means differ by μ; 1 where the
    canaries were all in or all out, or are fewer than three.

    P[T >= t] = E Φ(δ - t W), where W² is chi-square over its n - 2 degrees and δ the non-centrality, by the trapezoidal
    rule on log W, which converges geometrically.
    """
    from scipy import special

    n = scores.inside + scores.outside
    if not (scores.inside and scores.outside and n > 2):
        return 1.0
    degrees, root = n - 2, math.sqrt(scores.inside * scores.outside / n)
    t, width = scores.difference * root, 1 / math.sqrt(2 * degrees)
    reach = 12 * width + 45 / degrees
    count = min(_MAX_POINTS, math.ceil(2 * reach * _POINTS_EACH / min(width, 1 / max(1.0, abs(t)))))
    logs = np.linspace(-reach, reach, count)
    weights = np.exp(degrees * (logs - np.expm1(2 * logs) / 2))
    chance = float(np.sum(weights * special.ndtr(mu * root - t * np.exp(logs))) / np.sum(weights))
    return min(1.0, max(_LEAST, chance))


def lower_mu_of_scores(scores: Scores, confidence: float) -> float:
    """Returns the least μ >= 0 whose chance of as large a difference is 1 - confidence: a lower confidence bound, if
    scores are normal."""
    level = 1 - confidence
    low, high = 0.0, max(1.0, 2 * scores.difference)
    if chance_of_difference(scores, low) >= level:
        return low
    while chance_of_difference(scores, high) < level:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance_of_difference(scores, middle) < level else (low, middle)
    return low


def judge_specification(scores: Scores, specified: float, confidence: float) -> SpecificationTest:
    """Returns the verdict of the test. The specified program is inconsistent with probability at most 1 - confidence.

    Guarantees: exactly so where scores are sums of noise and canaries; gradients of records are further noise.

    Args:
        specified: of `specified_mu`.
    """
    p_value = min(1.0, round_up(chance_of_difference(scores, specified)))
    return SpecificationTest(
        evidence=scores,
        confidence=confidence,
        specified_mu=specified,
        lower_mu=round_down(lower_mu_of_scores(scores, confidence)),
        p_value=p_value,
        consistent=p_value >= 1 - confidence,
    )
