"""Gaussian differential privacy: the exact trade between ε and δ of the unsampled Gaussian.

Notation: μ the sensitivity over the standard deviation; G_μ the Gaussian trade-off function.
"""

from __future__ import annotations

import math

_ROUND_UP = 1 + 1e-12

# Gauss-Legendre with four nodes: exact to degree 7
_POINTS = (-0.8611363115940526, -0.3399810435848563, 0.3399810435848563, 0.8611363115940526)
_WEIGHTS = (0.17392742256872692, 0.3260725774312731, 0.3260725774312731, 0.17392742256872692)


def _nodes(a: float, b: float) -> list[float]:
    return [(a + b) / 2 + (b - a) / 2 * point for point in _POINTS]


def delta(mu: float, epsilon: float) -> float:
    """Returns δ(ε) = Φ(μ/2 - ε/μ) - exp(ε) Φ(-μ/2 - ε/μ) of N(μ, 1) against N(0, 1), for μ >= 0.

    Guarantees: exact up to 1e-11 relative, and never below the truth; in [0, 1].
    Source: Balle & Wang 2018, Theorem 8; Dong, Roth & Su 2022, Corollary 2.13.
    """
    if mu == 0:
        return 0.0 if epsilon >= 0 else -math.expm1(epsilon)
    if not mu > 0 or math.isnan(epsilon):
        raise ValueError(f"expected mu >= 0 and a number epsilon, got {mu} and {epsilon}")
    if math.isinf(mu):
        return 1.0
    if math.isinf(epsilon):
        return 0.0 if epsilon > 0 else 1.0
    from scipy import special

    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if near > -20:
        # φ(near) = exp(ε) φ(far): with the scaled tail erfcx nothing under- or overflows and little cancels
        a, b = near / math.sqrt(2), far / math.sqrt(2)
        if mu > 0.1:
            scaled = float(special.erfcx(a) - special.erfcx(b)) + 4e-16 * float(special.erfcx(a))
        else:  # the integral of -erfcx' over [a, b]
            slopes = [2 / math.sqrt(math.pi) - 2 * x * float(special.erfcx(x)) for x in _nodes(a, b)]
            scaled = (mu / math.sqrt(2)) * math.fsum(w * slope for w, slope in zip(_WEIGHTS, slopes, strict=True))
            scaled += 1e-15 * (1 + 2 * b * b) * mu * abs(slopes[0])
        value = 0.5 * math.exp(-near * near / 2) * scaled
    else:
        value = 1 - math.exp(epsilon + float(special.log_ndtr(-far)))
    return min(1.0, value * _ROUND_UP)


def epsilon(mu: float, delta_: float) -> float:
    """Returns the smallest ε >= 0 with δ(ε) <= δ, for 0 < δ < 1; 0 when δ(0) <= δ already.

    Guarantees: `delta(mu, result) <= δ`, and result is within 1e-11 relative of the smallest such ε.
    Source: inversion of `delta`, which is decreasing in ε.
    """
    if not 0 < delta_ < 1:
        raise ValueError(f"expected 0 < delta < 1, got {delta_}")
    if math.isinf(mu):
        return math.inf
    if delta(mu, 0.0) <= delta_:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta_))
    while not delta(mu, high) <= delta_:  # the tail bound holds already; rounding may cost one doubling
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if delta(mu, middle) <= delta_:
            high = middle
        else:
            low = middle
    return high


def mu_for(epsilon_: float, delta_: float) -> float:
    """Returns the largest μ whose δ(ε) is at most δ (ε >= 0, 0 < δ < 1): what one point of a profile allows.

    Guarantees: `delta(result, ε) <= δ`, and result is below the largest such μ by at most 1e-9 of it for δ <= 1 - 1e-4;
    nearer to 1, by more: the double δ says less of μ.
    Source: inversion of `delta`, which is increasing in μ.
    """
    low, high = 0.0, 1.0
    while delta(high, epsilon_) <= delta_:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if delta(middle, epsilon_) <= delta_:
            low = middle
        else:
            high = middle
    return low
