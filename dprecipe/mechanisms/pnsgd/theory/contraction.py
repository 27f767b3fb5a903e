"""Contraction of divergences by projected noisy steps: how much a step that does not use a record shrinks δ.

The hockey-stick divergence E_γ, γ = exp(ε), of two distributions is δ(ε). A step on a set of diameter D, with a map of
Lipschitz constant M and noise of scale ν, multiplies it by at most the divergence of the noise around two points at
distance M D: a factor below 1.

Notation: r is a distance over the scale of the noise; a = 2L/σ the farthest that one record moves a step, over the
noise; `reach` = M D/(ησ); `later` the number of steps after the record's. Logarithms are natural; all functions take
arrays.

Source: Asoodeh, Diaz & Calmon 2020, "Privacy amplification of iterative algorithms via contraction coefficients". Every
value is an upper bound up to 1e-11 relative, and never below by more than rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating[Any]]

MIN_LOG_DIVERGENCE = -1e9
"""Smallest logarithm that is returned for a positive divergence; its exp is zero in float64."""

_ROUND_UP = 1e-12
_FAR = 40.0
"""Number of standard deviations beyond which θ < exp(-800), and the bound exp(-ε²/2r²) is tight enough."""
# Gauss-Legendre with four nodes: exact to degree 7
_POINTS = (-0.8611363115940526, -0.3399810435848563, 0.3399810435848563, 0.8611363115940526)
_WEIGHTS = (0.17392742256872692, 0.3260725774312731, 0.3260725774312731, 0.17392742256872692)


def log_gaussian(epsilon: ArrayLike, r: ArrayLike) -> Array:
    """Returns log θ_ε(r), θ_ε(r) = Φ(r/2 - ε/r) - exp(ε) Φ(-r/2 - ε/r): N(r, 1) against N(0, 1), for ε >= 0 and r >= 0.

    `epsilon` and `r` are broadcast; the result has their common shape.

    Guarantees: increasing in r and decreasing in ε up to rounding; from -inf (r = 0) to 0. Relative error 1e-11, of the
    complement 1 - θ too, so that powers with large exponents can be taken.
    Source: Balle & Wang 2018, Theorem 8; `gdp.delta` is the same number.
    """
    from scipy import special

    r_ = np.asarray(r, dtype=np.float64)
    if np.shape(epsilon) != r_.shape or not r_.ndim:
        r_ = r_ + np.zeros(np.shape(epsilon) or 1)
    safe = np.minimum(np.maximum(r_, 1e-150), 1e150)
    ratio = np.minimum(epsilon, 1e150) / safe
    near, far = np.maximum(np.minimum(ratio - safe / 2, 1e150), -1e150), np.minimum(ratio + safe / 2, 1e150)
    # most of the mass is above: from the complement, a sum of positive terms
    low = np.minimum(near, -1.0)
    tail = 0.5 * special.erfcx(far / math.sqrt(2)) * np.exp(-0.5 * np.square(np.maximum(low, -40.0)))
    complement = (special.ndtr(low) + tail) * (1 - _ROUND_UP)
    above = np.log1p(-np.where(near < -1, complement, 0.0))
    # little of it is: exp(ε) φ(far) = φ(near), so that the scaled tail erfcx neither under- nor overflows
    a = np.minimum(np.maximum(near, -1.0), _FAR) / math.sqrt(2)
    b = far / math.sqrt(2)
    scaled = special.erfcx(a) * (1 + 4e-16) - special.erfcx(b)
    small = (safe < 1e-3) & (near < _FAR)
    if small.any():  # the integral of -erfcx' over [a, b]
        middle, half = (a[small] + b[small]) / 2, safe[small] / math.sqrt(8)
        scaled[small] = 2 * half * sum(w * _slope(middle + half * x) for x, w in zip(_POINTS, _WEIGHTS, strict=True))
    log_scaled = np.log(np.maximum(np.where(near < _FAR, scaled, 1.0) / 2, 1e-300))
    below = log_scaled - np.square(near) / 2 + _ROUND_UP + 1e-15 * np.square(near)
    result = np.where(near < -1, above, np.minimum(below, 0.0))
    logs: Array = np.where(r_ > 0, np.maximum(result, MIN_LOG_DIVERGENCE), -np.inf)
    return logs if np.ndim(r) or np.ndim(epsilon) else logs.reshape(())


def _slope(x: Array) -> Array:
    """Returns -erfcx'(x) = 2/√π - 2 x erfcx(x), rounded up."""
    from scipy import special

    result: Array = (2 / math.sqrt(math.pi) - 2 * x * special.erfcx(x)) * (1 + 1e-15 * (1 + 2 * np.square(x)))
    return result


def log_laplace(epsilon: ArrayLike, r: ArrayLike) -> Array:
    """Returns log of 1 - exp((ε - r)/2): Laplace(r, 1) against Laplace(0, 1), for ε >= 0 and r >= 0.

    `epsilon` and `r` are broadcast. Edge case: -inf (δ = 0) where ε >= r, so also at r = 0.

    Guarantees: exact up to rounding; increasing in r and decreasing in ε.
    Source: Asoodeh, Diaz & Calmon 2020, Lemma 3.
    """
    gap = (np.asarray(epsilon, dtype=np.float64) - np.asarray(r, dtype=np.float64)) / 2
    result: Array = np.where(gap < 0, np.log(-np.expm1(np.where(gap < 0, gap, -1.0))), -np.inf)
    return result


DISTRIBUTIONS: dict[str, Callable[[ArrayLike, ArrayLike], Array]] = {"gaussian": log_gaussian, "laplace": log_laplace}
"""Functions by family: log of the hockey-stick divergence at ε between noise of unit scale and the same noise shifted
by r."""


def log_shrunk(family: str, epsilon: ArrayLike, log_delta: ArrayLike, reach: ArrayLike) -> Array:
    """Returns log c, c = θ_ε'(reach) at exp(ε') = 1 + (exp(ε) - 1)/δ: a step shrinks a divergence δ to at most c δ.

    Arguments are broadcast: `log_delta` = log δ <= 0, `reach` = M D/(ησ) >= 0.

    Guarantees: an upper bound; c is at most θ_ε(reach), the contraction coefficient, and falls with δ. So K steps
    shrink δ to at most c(δ)^K δ. Edge case: at ε = 0, c = θ_0(reach), whatever δ is.

    Source: Asoodeh, Diaz & Calmon 2020, the bound (18) in the proof of Theorem 2, before its supremum over δ.
    """
    epsilon_ = np.asarray(epsilon, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_excess = epsilon_ + np.log(-np.expm1(-epsilon_))
    return DISTRIBUTIONS[family](np.logaddexp(0.0, log_excess - np.asarray(log_delta, dtype=np.float64)), reach)
