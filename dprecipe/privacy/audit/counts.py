"""Lower bounds from trials with one record and without it, by exact confidence intervals of the two rates.

The attack (what it looks at, its threshold, its direction) must be fixed before the trials that are counted: by
theory, or on other trials. The best of several thresholds, judged on the trials that chose it, is no bound.

Notation: t lower bound of the true-positive rate, f upper bound of the false-positive rate, c confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.audit.results import AttackTrials

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
