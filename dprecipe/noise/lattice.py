"""Gaussian noise on whole numbers, in numpy: exact sums in, multiples of a power of two out.

A statistic whose terms are whole multiples of 2^-bits has an exact sum in int64, so its sensitivity is that of the
terms, without a margin for rounding and in any order of addition. With noise z, the release is the multiple of g that
is nearest to x + z, where g is a power of two between 2^-21 and 2^-20 of the noise's scale (2^-bits if that is larger):

1. x is a multiple of 2^-bits, so x + round(z) = round(x + z): z is rounded to the terms' lattice first, added as a
   whole number, and the sum is rounded to g as a whole number. The result is one public, rising function of x + z
   (post-processing), and nothing but x + z depends on the data.
2. Floating point then matters only for the distribution of z on intervals of length g: see the analysis at the head of
   `dprecipe.training.steps.noise`, whose radius is drawn from as many bits as here and whose angle from fewer.

Source: I. Mironov, "On significance of the least significant bits for differential privacy", CCS 2012.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dprecipe.noise.draws import draw_gaussian
from dprecipe.noise.entropy import Stream

FINE = 20
"""The fineness of the lattice: at least 2^20 points in one scale of the noise, unless the terms themselves are
coarser."""
MIN_POINTS = 16
"""The fewest points of the terms' lattice in one scale of the noise; fewer are refused."""
LIMIT = 2.0**61
"""A bound well within int64 for sums and noise."""


def lattice_spacing(scale: float) -> float:
    """Returns g for a scale: a power of two, above 2^-21 and at most 2^-20 of the scale.

    Raises:
        ValueError: the scale is not positive, or too small or too large for doubles to have such a lattice.
    """
    if not 2.0**-900 < scale < 2.0**900:  # written so that NaN fails
        raise ValueError(f"expected a positive scale of noise, got {scale}")
    return math.ldexp(0.5, math.frexp(scale)[1] - FINE)


def add_gaussian(total: NDArray[np.int64], bits: int, scale: float, stream: Stream) -> NDArray[np.float64]:
    """Returns total · 2^-bits + N(0, scale²), each number with independent noise, on the lattice of the noise.

    `total`: int64 of any shape, exact sums in units of 2^-bits. `scale`: the standard deviation, in units of 1. For an
    empty `total` nothing is drawn.

    Guarantees: each result is the same public function of the exact sum and a draw; it is a multiple of
    `lattice_spacing(scale)` or of 2^-bits, whichever is larger; and zero is +0.

    Raises:
        ValueError: the scale is not positive and finite, is less than 16 units of 2^-bits, or is too large for int64;
            or a sum is too large.
    """
    if not MIN_POINTS * 2.0**-bits <= scale < math.ldexp(LIMIT, -bits) / 16:  # written so that NaN fails
        raise ValueError(f"expected a scale of noise from {MIN_POINTS * 2.0**-bits:g} on, got {scale}")
    if total.size and not max(abs(int(total.min())), abs(int(total.max()))) < LIMIT:
        raise ValueError("a sum is too large")
    noise = np.rint(np.ldexp(scale * draw_gaussian(stream, total.size), bits)).astype(np.int64)
    sum_ = total.ravel() + noise
    step = max(1, round(math.ldexp(lattice_spacing(scale), bits)))
    rounded = (sum_ + step // 2) // step
    result: NDArray[np.float64] = np.ldexp((rounded * step).astype(np.float64), -bits)
    return result.reshape(total.shape)
