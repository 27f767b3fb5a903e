"""Random phases under a power law: images whose spectrum falls like that of natural ones, with correlated colours.

Amplitudes are 1 / (|f_x|^a + |f_y|^b), with a and b drawn for each image from 0.5 to 3.5. Source: M. Baradad et al.,
"Learning to See by Looking at Noise", NeurIPS 2021, section 3.2 ("spectrum" with "colour").

The Fourier sum is one of whole numbers below 2^53, so that a product of matrices in double precision is exact, in
whatever order a library adds.

Shapes: N images, C channels, S the side of the period, F = S // 2 + 1 frequencies along x.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from dprecipe.priors.words import SINE_BITS, TURN, Integers, as_bytes, below, cosine, draw_numbers, round_table, sine

PURPOSE = 2
EXPONENTS = 13
"""Number of exponents: from 0.5 to 3.5, in quarters."""
AMPLITUDE_BITS = 14


def draw_spectrum(seed: int, images: range, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Draws images (N, C, H, W) of the numbers in `images`."""
    channels, height, width = shape
    side = max(height, width)
    phases = channels * side * (side // 2 + 1)
    drawn = draw_numbers(seed, PURPOSE, images, 13 + phases)
    exponents = below(drawn[:, :2], EXPONENTS)
    amplitude_NSF = amplitude_table(side)[exponents[:, 0], exponents[:, 1]]
    phase_NCSF = below(drawn[:, 13:], TURN).reshape(len(images), channels, side, -1)
    real = (amplitude_NSF[:, None] * cosine(phase_NCSF)) >> SINE_BITS
    imaginary = (amplitude_NSF[:, None] * sine(phase_NCSF)) >> SINE_BITS
    planes = _sum_waves(real.astype(np.float64), imaginary.astype(np.float64), side)
    return as_bytes((planes >> 16)[..., :height, :width], drawn[:, 2:13])


def _sum_waves(real: NDArray[np.float64], imaginary: NDArray[np.float64], side: int) -> Integers:
    """Returns the real part of Σ (re + i·im) e^(2πi (f_x x + f_y y) / S), in whole numbers."""
    places = np.arange(side)
    across = places[: side // 2 + 1, None] * places % side * TURN // side  # (F, S): angles, rounded down to a step
    down = places[:, None] * places % side * TURN // side  # (S, S)
    cos_y, sin_y = cosine(down).astype(np.float64), sine(down).astype(np.float64)
    cos_x, sin_x = cosine(across).astype(np.float64), sine(across).astype(np.float64)
    total = (cos_y @ real - sin_y @ imaginary) @ cos_x - (sin_y @ real + cos_y @ imaginary) @ sin_x
    return total.astype(np.int64)


@cache
def amplitude_table(side: int) -> Integers:
    """Returns the amplitude of each frequency, (a, b, S, F), in units of 2^-AMPLITUDE_BITS; 0 for the mean."""
    exponent = 0.5 + 0.25 * np.arange(EXPONENTS)
    down = np.minimum(np.arange(side), side - np.arange(side)).astype(np.float64)
    power_x = np.arange(side // 2 + 1, dtype=np.float64) ** exponent[:, None]
    power_y = down ** exponent[:, None]
    total = power_x[:, None, None, :] + power_y[None, :, :, None]
    total[:, :, 0, 0] = np.inf
    return round_table(2.0**AMPLITUDE_BITS / total)
