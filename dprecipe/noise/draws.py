"""Noise drawn from a secret stream."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dprecipe.noise.entropy import Stream

# Draws in blocks that stay in the cache.
BLOCK = 1 << 15


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
