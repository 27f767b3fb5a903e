"""p-values of the tests of an audit: exact, or bounds from above, so that a level bounds how often a sound program
fails."""

from __future__ import annotations

import math

from dprecipe.privacy.audit.results import (
    Correlation,
    Distance,
    Equality,
    Excess,
    Frequency,
    TestEvidence,
    Variance,
)


def p_value(evidence: TestEvidence) -> float:
    """Returns the probability that a sound program gives evidence at least as extreme as this, or an upper bound of it;
    0 or 1 for deterministic tests."""
    match evidence:
        case Excess():
            return 1.0 if evidence.largest <= evidence.allowed else 0.0
        case Equality():
            return 1.0 if evidence.differing == 0 else 0.0
        case Frequency():
            return _frequency(evidence)
        case Variance():
            return _variance(evidence)
        case Correlation():
            return _correlation(evidence)
        case Distance():
            return _distance(evidence)


def _frequency(evidence: Frequency) -> float:
    """Returns twice the smaller tail of the binomial distribution. Source: Clopper & Pearson 1934."""
    from scipy import special

    k, n, share = evidence.successes, evidence.trials, evidence.expected
    above = 1.0 if k == 0 else float(special.betainc(k, n - k + 1, share))
    below = 1.0 if k == n else float(special.betaincc(k + 1, n - k, share))
    return min(1.0, 2 * min(above, below))


def _variance(evidence: Variance) -> float:
    from scipy import special

    below = float(special.gammainc(evidence.degrees / 2, evidence.sum_squares / 2))
    above = float(special.gammaincc(evidence.degrees / 2, evidence.sum_squares / 2))
    return min(1.0, 2 * min(below, above))


def _correlation(evidence: Correlation) -> float:
    """Returns Chernoff's bound: E exp(tXY) <= (1-t²)^(-1/2) where E exp(tX) and E exp(tY) are at most exp(t²/2), so
    that P[|Σ XY| >= s] <= 2 min_t exp(-ts) (1-t²)^(-n/2); the minimum is where s t² + n t = s."""
    s, n = abs(evidence.sum_products), evidence.pairs
    if s == 0:
        return 1.0
    t = 2 * s / (n + math.hypot(n, 2 * s))
    exponent = -t * s - n / 2 * math.log1p(-t * t) if t < 1 else -math.inf
    return min(1.0, 2 * math.exp(exponent))


def _distance(evidence: Distance) -> float:
    """Returns twice the exact one-sided tail, a bound that is tight if small. Source: Birnbaum & Tingey 1951."""
    from scipy import special

    return min(1.0, 2 * float(special.smirnov(evidence.sample, evidence.statistic)))
