"""Dead leaves: discs, rectangles and triangles of random places, sizes, turns and colours, each covering those before.

Source: D. Mumford, B. Gidas, "Stochastic models for generic images", 2001; M. Baradad et al., "Learning to See by
Looking at Noise", NeurIPS 2021 ("dead leaves, mixed"). Sizes fall with their third power, as in natural images.

Shapes: N images, L leaves, C, H, W. Lengths are in quarters of a pixel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dprecipe.priors.words import TURN, below, cosine, draw_numbers, round_table, sine

PURPOSE = 1
LEAVES = 96
NUMBERS = 8
"""Numbers that a leaf draws: place (2), size, proportion, turn, colour (3)."""
UNIT = 4
"""Lengths a pixel."""
TURNS = 96
"""Directions that a leaf may have; a third of a turn is one of them."""


def draw_leaves(seed: int, images: range, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Draws images (N, C, H, W) of the numbers in `images`. Leaf j is a disc, a rectangle or a triangle as j mod 3
    says.
    """
    channels, height, width = shape
    drawn_NLK = draw_numbers(seed, PURPOSE, images, LEAVES * NUMBERS).reshape(len(images), LEAVES, NUMBERS)
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
