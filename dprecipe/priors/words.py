"""Random words and whole numbers: what makes images the same bytes on every machine.

All arithmetic of the generators is of whole numbers. Words come from the counter-based generator Philox-4x64-10 (J. K.
Salmon et al., SC 2011), whose output numpy guarantees for good, unlike that of its distributions. Tables of sines and
powers are rounded to whole numbers; `tests/priors/test_words.py` shows that none is so near to a half that the last
bits of a library's sine could matter.
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


def as_bytes(planes_NCHW: Integers, numbers: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Planes of any range as images: channels mixed by a random matrix, then stretched to a random range of bytes.

    The first plane is what channels have in common. `planes_NCHW` below 2^40; `numbers`: (N, 11); one channel
    needs the last two.
    """
    planes = planes_NCHW
    if planes.shape[1] > 1:
        mix = below(numbers[:, :9], 256).reshape(-1, 3, 3) - np.array([0, 128, 128])
        mixed = [sum(mix[:, c, j, None, None] * planes[:, j] for j in range(3)) for c in range(3)]
        planes = np.stack([np.asarray(plane, dtype=np.int64) for plane in mixed], axis=1)
    low = planes.min(axis=(1, 2, 3), keepdims=True)
    width = np.maximum(planes.max(axis=(1, 2, 3), keepdims=True) - low, 1)
    first = below(numbers[:, 9], 96)[:, None, None, None]
    last = 255 - below(numbers[:, 10], 96)[:, None, None, None]
    result: NDArray[np.uint8] = (first + (planes - low) * (last - first) // width).astype(np.uint8)
    return result
