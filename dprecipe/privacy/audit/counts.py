"""Lower bounds from what was counted: trials with one record and without it, or one run with many canaries.

The bounds from trials are by exact confidence intervals of the two rates.

The attack (what it looks at, its threshold, its direction) must be fixed before the trials that are counted: by
theory, or on other trials. The best of several thresholds, judged on the trials that chose it, is no bound.

Notation: t lower bound of the true-positive rate, f upper bound of the false-positive rate, c confidence.

In one run with many canaries, each is in it by a fair coin of its own. How many are named, in and out, must be fixed
before the run. δ is multiplied by all canaries, not by those named. Notation: m canaries, r of them named "in" or
"out", v names right, q = e^ε/(1 + e^ε), W binomial of r and q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.audit.results import AttackTrials, Guesses

Floats = NDArray[np.float64]


def bound_rates(trials: AttackTrials, confidence: float) -> tuple[float, float]:
    """Returns a lower bound t of the true-positive rate and an upper bound f of the false-positive rate.

    Guarantees: both hold together with probability at least `confidence`: each at (1 + confidence)/2.
    Source: Clopper & Pearson 1934.
    """
    t = lower_rates(trials.positives_in, trials.trials_in, confidence)
    f = upper_rates(trials.positives_out, trials.trials_out, confidence)
    return float(t), float(f)


def lower_rates(positives: Any, trials: int, confidence: float) -> Floats:
    """Returns the least rate that these positives out of `trials` allow, one-sided at (1 + confidence)/2."""
    from scipy import special

    k = np.asarray(positives, dtype=np.float64)
    bound: Floats = np.where(k == 0, 0.0, special.betaincinv(np.maximum(k, 1), trials - k + 1, (1 - confidence) / 2))
    return bound


def upper_rates(positives: Any, trials: int, confidence: float) -> Floats:
    """Returns the largest rate that these positives out of `trials` allow, one-sided at (1 + confidence)/2."""
    from scipy import special

    k = np.asarray(positives, dtype=np.float64)
    tail = special.betainccinv(k + 1, np.maximum(trials - k, 1), (1 - confidence) / 2)
    bound: Floats = np.where(k == trials, 1.0, tail)
    return bound


def lower_mu(trials: AttackTrials, confidence: float) -> float:
    """Returns a lower bound of the μ of a Gaussian pair: Φ⁻¹(t) - Φ⁻¹(f), at least 0.

    Guarantees: a mechanism that is μ-GDP gives more than μ with probability at most 1 - confidence.
    Source: Dong, Roth & Su 2022, Definition 2.6; Nasr et al. 2023.
    """
    t, f = bound_rates(trials, confidence)
    return float(mu_of_rates(np.asarray(t), np.asarray(f)))


def lower_epsilon(trials: AttackTrials, confidence: float, delta: float) -> float:
    """Returns a lower bound of ε by the attack and its complement: max{log((t-δ)/f), log((1-f-δ)/(1-t))}, at least 0.

    Guarantees: a mechanism that is (ε, δ)-DP for both orders of the pair gives more than ε with probability at most
    1 - confidence.
    Source: Kairouz, Oh & Viswanath 2015, Theorem 2.1; Nasr et al. 2021.
    """
    t, f = bound_rates(trials, confidence)
    return float(epsilon_of_rates(np.asarray(t), np.asarray(f), delta))


def mu_of_rates(t: Floats, f: Floats) -> Floats:
    """Returns Φ⁻¹(t) - Φ⁻¹(f), at least 0."""
    from scipy import special

    with np.errstate(invalid="ignore"):
        mu = special.ndtri(t) - special.ndtri(f)
    bound: Floats = np.where((t <= 0) | (f >= 1), 0.0, np.maximum(mu, 0.0))
    return bound


def epsilon_of_rates(t: Floats, f: Floats, delta: float) -> Floats:
    """Returns the least ε of (ε, δ)-DP that allows these two rates."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(t > delta, np.log(t - delta) - np.log(f), 0.0)
        second = np.where(1 - f > delta, np.log(1 - f - delta) - np.log1p(-t), 0.0)
    bound: Floats = np.maximum(np.maximum(first, second), 0.0)
    return bound


def allowed_rate(curve: Sequence[tuple[float, float]], false_positive_rate: float) -> float:
    """Returns the largest true-positive rate that a claimed profile, points (ε, δ), leaves to an attack.

    Source: Dong, Roth & Su 2022, Proposition 2.5.
    """
    from dprecipe.privacy.risk import true_positive_rate

    return true_positive_rate(curve, false_positive_rate)


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
