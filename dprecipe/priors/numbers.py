"""Whole numbers that generators draw from a counter, and tables of sines: the same on every machine.

Words come from the counter-based generator Philox-4x64-10 (J. K. Salmon et al., SC 2011), whose output numpy
guarantees for good, unlike that of its distributions. Tables are rounded to whole numbers; `tests/priors/test_words.py`
shows that none is so near to a half that the last bits of a library's sine could matter.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
HALF = np.uint64(32)
TURN = 1024
"""Steps of a whole turn in `sines`."""
SINE_BITS = 10
"""Sines are in units of 2^-10."""


def draw_numbers(seed: int, purpose: int, images: range, count: int) -> NDArray[np.uint64]:
    """Draws numbers (images, count) below 2^32; those of an image depend on (seed, purpose, number of the image) alone.

    Philox has the key (seed, purpose) and for image i the counter (0, i, 0, 0), and each word gives its upper half,
    then its lower one.
    """
    words = np.empty((len(images), (count + 1) // 2), dtype=np.uint64)
    key = np.array([seed, purpose], dtype=np.uint64)
    for row, image in enumerate(images):
        counter = np.array([0, image, 0, 0], dtype=np.uint64)
        words[row] = np.random.Philox(key=key, counter=counter).random_raw(words.shape[1])
    halves = np.stack([words >> HALF, words & np.uint64(0xFFFFFFFF)], axis=2)
    return halves.reshape(len(images), -1)[:, :count]


def below(numbers: NDArray[np.uint64], limit: int) -> Integers:
    """Returns whole numbers from 0 to `limit` - 1, of numbers below 2^32; `limit` is at most 2^31."""
    return ((numbers * np.uint64(limit)) >> HALF).astype(np.int64)


@cache
def sines() -> Integers:
    """Returns sin(2πi / TURN) for i from 0 to TURN - 1, in units of 2^-SINE_BITS."""
    return round_table(np.sin(2 * np.pi * np.arange(TURN) / TURN) * 2**SINE_BITS)


def sine(angle: Integers) -> Integers:
    """Returns the sine of an angle in steps of `TURN`, of any size."""
    return sines()[angle % TURN]


def cosine(angle: Integers) -> Integers:
    """Returns the cosine of an angle in steps of `TURN`, of any size."""
    return sines()[(angle + TURN // 4) % TURN]


def round_table(table: NDArray[np.float64]) -> Integers:
    """Rounds to the nearest whole numbers."""
    return np.floor(table + 0.5).astype(np.int64)


LEAVES_PURPOSE, SPECTRUM_PURPOSE, WAVELETS_PURPOSE, PARTS_PURPOSE, STROKES_PURPOSE = 1, 2, 3, 4, 5
"""Keys of the generators' words, and of those that place parts in images (`dprecipe.data.patches`)."""
