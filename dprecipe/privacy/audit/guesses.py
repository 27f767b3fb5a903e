"""The lower bound of ε from one run with many canaries, each in it by a fair coin of its own.

Notation: m canaries, r of them named "in" or "out", v names right, q = e^ε/(1 + e^ε), W binomial of r and q.

How many are named, in and out, must be fixed before the run. δ is multiplied by all canaries, not by those named.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.audit.results import Guesses

_TOLERANCE = 1e-9


def chance_of_right(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Returns the largest probability that an attack on an (ε, δ)-DP run names at least this many right:
    P[W >= v] + 2 m δ max_{1 <= i <= v} P[v-i <= W < v]/i, at most 1.

    Guarantees: exact up to 1e-10 relative rounding error.
    Source: Steinke, Nasr & Jagielski 2023, Theorem 5.2.
    """
    from scipy import special

    r, v = guesses.named_in + guesses.named_out, guesses.correct
    if v == 0:
        return 1.0
    log_right, log_wrong = -np.logaddexp(0.0, -epsilon), -np.logaddexp(0.0, epsilon)
    chance = float(special.betainc(v, r - v + 1, math.exp(log_right)))
    if delta > 0:
        counts_V = np.arange(v - 1, -1, -1)
        logs_V = _log_binomial(r, counts_V) + counts_V * log_right + (r - counts_V) * log_wrong
        alpha = float(np.max(np.cumsum(np.exp(logs_V)) / np.arange(1, v + 1)))
        chance += 2 * guesses.canaries * delta * alpha
    return min(1.0, chance)


def lower_epsilon_of_guesses(guesses: Guesses, confidence: float, delta: float) -> float:
    """Returns the largest ε at which this many right names have a probability below 1 - confidence; 0 if there is none.

    Guarantees: an (ε, δ)-DP run gives more than ε with probability at most 1 - confidence. Rejecting an ε rejects all
    below it, since an (ε', δ)-DP run is (ε, δ)-DP for ε >= ε'.
    Source: Steinke, Nasr & Jagielski 2023, Section 5.
    """
    level = 1 - confidence
    if not chance_of_right(guesses, 0.0, delta) < level:
        return 0.0
    low, high = 0.0, 1.0
    while chance_of_right(guesses, high, delta) < level:
        low, high = high, 2 * high
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        if chance_of_right(guesses, middle, delta) < level:
            low = middle
        else:
            high = middle
    return low


def _log_binomial(n: int, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    from scipy import special

    logs: NDArray[np.float64] = special.gammaln(n + 1) - special.gammaln(counts + 1) - special.gammaln(n - counts + 1)
    return logs
