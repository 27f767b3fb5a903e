"""Sparse wavelet coefficients: images with edges and flat parts, from few large coefficients among many small ones.

Each band of each image has magnitudes of a Weibull distribution whose shape (0.4 to 1.6) and scale are drawn; scales
grow with coarseness. The transform is the reversible 5/3 of D. Le Gall and A. Tabatabai, 1988 (that of JPEG 2000), in
whole numbers. After the "wavelet-marginal model" of M. Baradad et al., "Learning to See by Looking at Noise", NeurIPS
2021, which fits marginals of a steerable pyramid by iteration; here they are drawn.

Shapes: N images, C channels, S the side, a power of 2.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from dprecipe.priors.words import Integers, as_bytes, below, draw_numbers, round_table

PURPOSE = 3
SHAPES = 7
"""Number of shapes of magnitudes: from 0.4 to 1.6, in fifths."""
MAGNITUDES = 1024
LARGEST = 1 << 20


def draw_wavelets(seed: int, images: range, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Draws images (N, C, H, W) of the numbers in `images`."""
    channels, height, width = shape
    levels = max(2, (max(height, width) - 1).bit_length())
    side = 1 << levels
    drawn = draw_numbers(seed, PURPOSE, images, 15 + channels * side * side)
    kind = below(drawn[:, 11:14], SHAPES)  # of the three orientations
    growth = 4 + below(drawn[:, 14], 9)  # a level is 2^(growth / 8) times as large as the one that is finer
    table = magnitude_table()
    number = drawn[:, 15:].reshape(len(images), channels, side, side)
    sign = 1 - 2 * below(number, 2)
    magnitude = (number & np.uint64(MAGNITUDES - 1)).astype(np.int64)
    low = (sign * table[SHAPES // 2, magnitude])[..., :1, :1] << levels
    for level in range(levels):
        size = 1 << level
        factor = growth_table()[growth, levels - 1 - level][:, None, None, None]
        places = ((0, size), (size, 0), (size, size))
        bands = []
        for orientation, (y, x) in enumerate(places):
            part = (slice(None), slice(None), slice(y, y + size), slice(x, x + size))
            drawn_shape = kind[:, orientation, None, None, None]
            bands.append(sign[part] * table[drawn_shape, magnitude[part]] * factor >> 8)
        low = _join(_join(low, bands[0], 3), _join(bands[1], bands[2], 3), 2)
    return as_bytes(low[..., :height, :width], drawn[:, :11])


def _join(smooth: Integers, detail: Integers, axis: int) -> Integers:
    """Computes one level of the inverse 5/3 transform along an axis, as on a circle."""
    even = smooth - ((np.roll(detail, 1, axis) + detail + 2) >> 2)
    odd = detail + ((even + np.roll(even, -1, axis)) >> 1)
    joined = np.stack([even, odd], axis=axis + 1)
    return joined.reshape(*even.shape[:axis], 2 * even.shape[axis], *even.shape[axis + 1 :])


@cache
def magnitude_table() -> Integers:
    """Returns quantiles (shape, MAGNITUDES) of Weibull distributions of median 1, in units of 2^-8."""
    part = (np.arange(MAGNITUDES) + 0.5) / MAGNITUDES
    shape = 0.4 + 0.2 * np.arange(SHAPES)
    ratio = -np.log(part) / np.log(2.0)
    return np.minimum(round_table(256 * ratio ** (1 / shape[:, None])), LARGEST)


@cache
def growth_table() -> Integers:
    """Returns 2^(growth · level / 8), (growth, level), in units of 2^-8."""
    return round_table(256 * 2.0 ** (np.arange(13)[:, None] * np.arange(9) / 8))
