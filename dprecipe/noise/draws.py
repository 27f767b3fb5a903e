"""Noise drawn from a secret stream."""

from __future__ import annotations

import sys
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Stream

# Draws are made in blocks that stay in the cache.
BLOCK = 1 << 15
_BELOW = np.uint64(2**63 - 1)
_FOUND = np.show_config(mode="dicts")["SIMD Extensions"].get("found", ())  # numpy leaves out what is empty
VECTORISED = sys.platform == "linux" and not {"X86_V4", "AVX512_SKX"}.isdisjoint(_FOUND)
"""True if numpy computes logarithms and tangents of doubles eight at a time here: a tangent then takes half as long as
torch's sine."""


def draw_noise(distribution: Distribution, stream: Stream, count: int) -> NDArray[np.float64]:
    """Returns `count` independent draws from a distribution of scale 1: (count,) float64.

    Guarantees: every family is an exact transformation of uniforms with 63 bits, so its tails end only at the uniform
    nearest to 0.

    | family | largest draw | probability of a larger value |
    |---|---|---|
    | laplace | 44.3 | 2^-64 |
    | sech | 44.6 | 2^-64 |
    | cauchy | 1.1e19 | 2^-64 |
    | student_t | sqrt(df (2^(128/df) - 1)): 415 for df = 9 | less than 2^-64 |
    | variance_gamma, a sum of λ Laplace draws | 44.3 λ | less than λ 2^-64 |
    | gaussian | see `draw_gaussian` | |

    With `count` = 0 nothing is drawn. The scale is the caller's: `dprecipe.training.steps.noise` refuses a scale of 0.

    Raises:
        ValueError: the stream was shared.

    Source: Laplace, Cauchy and hyperbolic secant: inversion of the distribution function of |X|. Student's t: Bailey
    1994. Variance-gamma with whole λ: Kotz, Kozubowski & Podgórski 2001, section 2.3.
    """
    if distribution.family == "gaussian":
        return draw_gaussian(stream, count)
    out = np.empty(count)
    for start in range(0, count, BLOCK):
        block = out[start : start + BLOCK]
        if distribution.family == "student_t":
            block[:] = _student_t(cast(float, distribution.shape), stream, len(block))
        elif distribution.family == "variance_gamma":
            block[:] = sum(
                _inverted("laplace", stream, len(block)) for _ in range(int(cast(float, distribution.shape)))
            )
        else:
            block[:] = _inverted(distribution.family, stream, len(block))
    return out


def draw_gaussian(stream: Stream, count: int) -> NDArray[np.float64]:
    """Returns `count` independent standard normal draws: (count,) float64. An odd count discards one draw; 0 draws
    nothing.

    Guarantees: the radius comes from a 63-bit uniform, so draws reach 9.4 standard deviations (a normal draw exceeds
    that with probability 5e-21).
    Source: Box and Muller 1958.
    """
    out = np.empty(count + count % 2)
    spare = np.empty(min(BLOCK, len(out) // 2))
    for start in range(0, len(out), 2 * BLOCK):
        block = out[start : start + 2 * BLOCK]
        half = len(block) // 2
        radius, angle = block[:half], block[half:]
        np.log(_fine(stream.words(half)), out=radius)
        np.multiply(radius, -2.0, out=radius)
        np.sqrt(radius, out=radius)
        np.multiply(stream.uniform(half), np.pi, out=angle)
        turn(radius, angle, spare[:half])
    return out[:count]


def turn(radius: NDArray[np.float64], half_angle: NDArray[np.float64], spare: NDArray[np.float64]) -> None:
    """Replaces each radius and each half angle a by radius × cos 2a and radius × sin 2a. `spare` is overwritten.

    Guarantees: an error below 2^-49 of the radius, for |a| <= π.
    Source: cos 2a = 2/(1 + t²) - 1 and sin 2a = 2t/(1 + t²) for t = tan a, which is finite for each double a.
    """
    if VECTORISED:
        tangent = np.tan(half_angle, out=half_angle)
        np.multiply(tangent, tangent, out=spare)
        np.multiply(spare, 0.5, out=spare)
        np.add(spare, 0.5, out=spare)
        np.divide(radius, spare, out=spare)
        np.multiply(tangent, spare, out=half_angle)
        np.subtract(spare, radius, out=radius)
    else:
        np.multiply(half_angle, 2.0, out=half_angle)
        np.cos(half_angle, out=spare)
        np.sin(half_angle, out=half_angle)
        np.multiply(half_angle, radius, out=half_angle)
        np.multiply(spare, radius, out=radius)


def _fine(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Returns uniforms in (0, 1] from the lower 63 bits, (k + 1/2) 2^-63, finest near 0. Overwrites the words."""
    np.bitwise_and(words, _BELOW, out=words)
    uniform = words.astype(np.float64)
    np.add(uniform, 0.5, out=uniform)
    np.multiply(uniform, 2.0**-63, out=uniform)
    return uniform


def _inverted(family: str, stream: Stream, count: int) -> NDArray[np.float64]:
    """Returns draws from one word each: one bit is the sign, the rest is P(|X| > x)."""
    words = stream.words(count)
    sign = np.where(words > _BELOW, 1.0, -1.0)
    beyond = _fine(words)
    if family == "laplace":
        magnitude = -np.log(beyond)
    elif family == "cauchy":
        magnitude = 1.0 / np.tan((np.pi / 2) * beyond)
    else:  # sech
        magnitude = -np.log(np.tan((np.pi / 4) * beyond))
    signed: NDArray[np.float64] = np.copysign(magnitude, sign)
    return signed


def _student_t(df: float, stream: Stream, count: int) -> NDArray[np.float64]:
    """Returns draws of one coordinate of the bivariate t, whose radius is sqrt(df (U^(-2/df) - 1)). The other
    coordinate is not independent."""
    radius = np.sqrt(df * np.expm1(np.log(_fine(stream.words(count))) * (-2.0 / df)))
    return radius * np.cos((2.0 * np.pi) * stream.uniform(count))
