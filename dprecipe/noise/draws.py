"""Noise drawn from a secret stream."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from dprecipe.noise.entropy import Stream
from dprecipe.noise.laws import Law

# Draws in blocks that stay in the cache.
BLOCK = 1 << 15


def draw(law: Law, stream: Stream, count: int) -> NDArray[np.float64]:
    """`count` independent draws of a law of scale 1, float64.

    Every family is an exact transformation of uniforms with 52 bits, so the only thing that ends its tails is the
    uniform nearest to 0; what lies beyond has these probabilities:

    - laplace reaches 36 and sech 36.3, cauchy 2.9e15: 2^-52;
    - student_t reaches sqrt(df (2^(106/df) - 1)), 178 for df = 9: less than 2^-53;
    - variance_gamma, a sum of λ Laplace draws, 36 λ: less than λ 2^-52;
    - gaussian: see `gaussian`.

    Source: Laplace, Cauchy and hyperbolic secant: inversion of the distribution function of |X|. Student's t: Bailey
    1994. Variance-gamma with whole λ: Kotz, Kozubowski & Podgórski 2001, section 2.3.
    """
    if law.family == "gaussian":
        return gaussian(stream, count)
    out = np.empty(count)
    for start in range(0, count, BLOCK):
        block = out[start : start + BLOCK]
        if law.family == "student_t":
            block[:] = _student_t(cast(float, law.shape), stream, len(block))
        elif law.family == "variance_gamma":
            block[:] = sum(_inverted("laplace", stream, len(block)) for _ in range(int(cast(float, law.shape))))
        else:
            block[:] = _inverted(law.family, stream, len(block))
    return out


def gaussian(stream: Stream, count: int) -> NDArray[np.float64]:
    """`count` independent standard normal draws, float64.

    Guarantees: the radius comes from a 52-bit uniform, so draws reach 8.5 standard deviations (a normal passes
    that with probability 1e-17).
    Source: Box and Muller 1958.
    """
    out = np.empty(count + count % 2)
    for start in range(0, len(out), 2 * BLOCK):
        block = out[start : start + 2 * BLOCK]
        half = len(block) // 2
        radius = np.sqrt(-2.0 * np.log(stream.uniform(half)))
        angle = (2.0 * np.pi) * stream.uniform(half)
        np.multiply(radius, np.cos(angle), out=block[:half])
        np.multiply(radius, np.sin(angle), out=block[half:])
    return out[:count]


def _inverted(family: str, stream: Stream, count: int) -> NDArray[np.float64]:
    """One uniform a draw: its half gives the sign, its distance from the nearer end is half of P(|X| > x)."""
    uniform = stream.uniform(count)
    beyond = 2.0 * np.minimum(uniform, 1.0 - uniform)  # exact
    if family == "laplace":
        magnitude = -np.log(beyond)
    elif family == "cauchy":
        magnitude = 1.0 / np.tan((np.pi / 2) * beyond)
    else:  # sech
        magnitude = -np.log(np.tan((np.pi / 4) * beyond))
    signed: NDArray[np.float64] = np.copysign(magnitude, uniform - 0.5)
    return signed


def _student_t(df: float, stream: Stream, count: int) -> NDArray[np.float64]:
    """One coordinate of the bivariate t: sqrt(df (U^(-2/df) - 1)) is its radius. The other is not independent."""
    radius = np.sqrt(df * np.expm1(np.log(stream.uniform(count)) * (-2.0 / df)))
    return radius * np.cos((2.0 * np.pi) * stream.uniform(count))
