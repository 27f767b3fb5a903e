"""The images of a prior, by four generators (dead leaves, spectrum, wavelets, strokes), and their digest.

Shapes: N images, C, H, W; L leaves; S the side of a period, F = S // 2 + 1 frequencies along x.

All arithmetic is of whole numbers (`dprecipe.priors.numbers`), so that images are the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dprecipe.priors.numbers import (
    LEAVES_PURPOSE,
    SINE_BITS,
    SPECTRUM_PURPOSE,
    TURN,
    WAVELETS_PURPOSE,
    Integers,
    below,
    cosine,
    draw_numbers,
    round_table,
    sine,
)
from dprecipe.priors.schema import Prior, fits_generators
from dprecipe.priors.strokes import draw_strokes


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


SHAPES = 7
"""Number of shapes of magnitudes: from 0.4 to 1.6, in fifths."""
MAGNITUDES = 1024
LARGEST = 1 << 20


def draw_wavelets(seed: int, images: range, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Draws images (N, C, H, W) of the numbers in `images`: images with edges and flat parts, from few large wavelet
    coefficients among many small ones.

    Each band of each image has magnitudes of a Weibull distribution whose shape (0.4 to 1.6) and scale are drawn;
    scales grow with coarseness. The transform is the reversible 5/3 of D. Le Gall and A. Tabatabai, 1988 (that of JPEG
    2000), in whole numbers; the side is a power of 2. After the "wavelet-marginal model" of M. Baradad et al.,
    "Learning to See by Looking at Noise", NeurIPS 2021, which fits marginals of a steerable pyramid by iteration; here
    they are drawn.
    """
    channels, height, width = shape
    levels = max(2, (max(height, width) - 1).bit_length())
    side = 1 << levels
    drawn = draw_numbers(seed, WAVELETS_PURPOSE, images, 15 + channels * side * side)
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


EXPONENTS = 13
"""Number of exponents: from 0.5 to 3.5, in quarters."""
AMPLITUDE_BITS = 14


def draw_spectrum(seed: int, images: range, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Draws images (N, C, H, W) of the numbers in `images`: random phases under a power law, so that the spectrum falls
    like that of natural images, with correlated colours.

    Amplitudes are 1 / (|f_x|^a + |f_y|^b), with a and b drawn for each image from 0.5 to 3.5. The Fourier sum is one of
    whole numbers below 2^53, so that a product of matrices in double precision is exact, in whatever order a library
    adds.

    Source: M. Baradad et al., "Learning to See by Looking at Noise", NeurIPS 2021, section 3.2 ("spectrum" with
    "colour").
    """
    channels, height, width = shape
    side = max(height, width)
    phases = channels * side * (side // 2 + 1)
    drawn = draw_numbers(seed, SPECTRUM_PURPOSE, images, 13 + phases)
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


LEAVES = 96
NUMBERS = 8
"""Numbers that a leaf draws: place (2), size, proportion, turn, colour (3)."""
UNIT = 4
"""Lengths a pixel."""
TURNS = 96
"""Directions that a leaf may have; a third of a turn is one of them."""


def draw_leaves(seed: int, images: range, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Draws images (N, C, H, W) of the numbers in `images`: discs, rectangles and triangles of random places, sizes,
    turns and colours, each covering those before. Leaf j is a disc, a rectangle or a triangle as j mod 3 says.

    Lengths are in quarters of a pixel; sizes fall with their third power, as in natural images.

    Source: D. Mumford, B. Gidas, "Stochastic models for generic images", 2001; M. Baradad et al., "Learning to See by
    Looking at Noise", NeurIPS 2021 ("dead leaves, mixed").
    """
    channels, height, width = shape
    drawn_NLK = draw_numbers(seed, LEAVES_PURPOSE, images, LEAVES * NUMBERS).reshape(len(images), LEAVES, NUMBERS)
    radii = radius_table(max(height, width))
    x_NL = below(drawn_NLK[..., 0], UNIT * width).astype(np.int32)
    y_NL = below(drawn_NLK[..., 1], UNIT * height).astype(np.int32)
    radius_NL = radii[below(drawn_NLK[..., 2], len(radii))].astype(np.int32)
    narrow_NL = (radius_NL * (64 + below(drawn_NLK[..., 3], 193)) >> 8).astype(np.int32)
    angle_NL = below(drawn_NLK[..., 4], TURNS)
    columns = UNIT * np.arange(width, dtype=np.int32) + UNIT // 2
    rows = UNIT * np.arange(height, dtype=np.int32) + UNIT // 2
    top_NHW = np.zeros((len(images), height, width), dtype=np.uint8)
    for leaf in range(LEAVES):
        dx = columns[None, None, :] - x_NL[:, leaf, None, None]
        dy = rows[None, :, None] - y_NL[:, leaf, None, None]
        radius, narrow = (length[:, leaf, None, None] for length in (radius_NL, narrow_NL))
        if leaf % 3 == 0:
            inside = dx * dx + dy * dy <= radius * radius
        elif leaf % 3 == 1:
            inside = np.abs(_along(dx, dy, angle_NL[:, leaf])) <= radius << 10
            inside &= np.abs(_along(dx, dy, angle_NL[:, leaf] + TURNS // 4)) <= narrow << 10
        else:
            inside = _along(dx, dy, angle_NL[:, leaf]) <= radius << 9
            inside &= _along(dx, dy, angle_NL[:, leaf] + TURNS // 3) <= radius << 9
            inside &= _along(dx, dy, angle_NL[:, leaf] + 2 * TURNS // 3) <= radius << 9
        top_NHW[inside] = leaf
    colour_NLC = (drawn_NLK[..., 5 : 5 + channels] >> np.uint64(24)).astype(np.uint8)
    flat_NPC = np.take_along_axis(colour_NLC, top_NHW.reshape(len(images), -1, 1).astype(np.intp), axis=1)
    return np.ascontiguousarray(flat_NPC.transpose(0, 2, 1)).reshape(len(images), *shape)


def radius_table(size: int) -> NDArray[np.int64]:
    """Returns 4,096 radii for an image of that size: quantiles of a density that falls with r³ from a 12th to half
    of it.
    """
    shortest, longest = max(UNIT * size / 12, UNIT / 2), UNIT * size / 2
    part = (np.arange(4096) + 0.5) / 4096
    return round_table(1 / np.sqrt(shortest**-2 - part * (shortest**-2 - longest**-2)))


def _along(dx: NDArray[np.int32], dy: NDArray[np.int32], angle_N: NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns each pixel's distance from a leaf's middle along a direction, in 2^-10 lengths; angles of `TURNS`."""
    angle = (angle_N * TURN // TURNS)[:, None, None]
    result: NDArray[np.int32] = dx * cosine(angle).astype(np.int32) + dy * sine(angle).astype(np.int32)
    return result


Images = NDArray[np.uint8]
Generator = Callable[[int, range, tuple[int, int, int]], Images]
ImageShape = tuple[int, int, int]

GENERATORS: dict[str, Generator] = {
    "dead_leaves": draw_leaves,
    "spectrum": draw_spectrum,
    "wavelets": draw_wavelets,
    "strokes": draw_strokes,
}
MIXED = ("dead_leaves", "spectrum", "wavelets")
BLOCK = 60
"""Images that are made at a time; no image depends on it."""


def draw_images(prior: Prior, shape: ImageShape, images: range) -> Images:
    """Returns the images (N, C, H, W) of these numbers, as bytes.

    Guarantees: an image is a function of (generator, version, seed, shape) and of its number, byte for byte, on every
    machine. `mixed` takes image i from generator i mod 3 of `MIXED`.

    Raises:
        ValueError: there are no images of this shape.
    """
    if not fits_generators(shape):
        raise ValueError(f"no generator makes images of {shape}")
    if prior.generator != "mixed":
        return GENERATORS[prior.generator](prior.seed, images, shape)
    result = np.empty((len(images), *shape), dtype=np.uint8)
    kinds = [GENERATORS[name] for name in MIXED]
    for place in range(min(len(kinds), len(images))):
        own = images[place :: len(kinds)]
        result[place :: len(kinds)] = kinds[images[place] % len(kinds)](prior.seed, own, shape)
    return result


def iterate_blocks(prior: Prior, shape: ImageShape) -> Iterator[Images]:
    """Yields all images of a prior in their order, a block at a time."""
    for first in range(0, prior.images, BLOCK):
        yield draw_images(prior, shape, range(first, min(first + BLOCK, prior.images)))


def make_images(prior: Prior, shape: ImageShape, progress: Callable[[int], None] = lambda done: None) -> Images:
    """Returns all images of a prior, (N, C, H, W) bytes; `progress` is called with how many there are so far."""
    result = np.empty((prior.images, *shape), dtype=np.uint8)
    done = 0
    for block in iterate_blocks(prior, shape):
        result[done : done + len(block)] = block
        done += len(block)
        progress(done)
    return result


def digest_images(prior: Prior, shape: ImageShape, progress: Callable[[int], None] = lambda done: None) -> str:
    """Returns `digest_bytes` of all images of a prior, in little memory."""
    result, done = hashlib.sha256(), 0
    for block in iterate_blocks(prior, shape):
        result.update(block.data)
        done += len(block)
        progress(done)
    return f"sha256:{result.hexdigest()}"


def digest_bytes(images: Images) -> str:
    """Returns `sha256:…` of the bytes of images in their order, (N, C, H, W) with the last axis fastest."""
    return f"sha256:{hashlib.sha256(images.data).hexdigest()}"
