"""Strokes: images of one or two lines of a pen, in the middle and of one size, as digits and letters are scanned.

All arithmetic is of whole numbers, as `dprecipe.priors.numbers` says; roots of whole numbers below 2^52 are exact.

Shapes: N images, C, H, W; P points of a line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dprecipe.priors.numbers import STROKES_PURPOSE, TURN, Integers, below, cosine, draw_numbers, sine

POINTS = 64
"""Points of a line, which are near enough to each other that it has no gaps."""
BEND = 351
BEND_BITS = 4
"""Bends from point to point are sums of two numbers below `BEND`, less their mean, in sixteenths of a step."""
CORNER = 424
"""The sharpest corner, in steps of `TURN`: 149 degrees."""
OFFSET = 2**22
"""The farthest along each axis that a line begins from another which it does not touch: a quarter of the longest."""
UNIT = 16
"""Lengths a pixel."""
WALK_NUMBERS, NUMBERS = 12, 33


def draw_strokes(seed: int, images: range, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Draws images (N, C, H, W) of the numbers in `images`: one or two lines on black, white in one channel, and in
    three each of a colour.

    A line bends evenly in three pieces, and two in five have a corner. Half of all images have a second line, which
    mostly begins on the first. A pen's radius is a 32nd to a 13th of a side. All is scaled to five sevenths of the
    sides, and the mean of the points is the middle: nearly how MNIST was made (Y. LeCun et al., "Gradient-Based
    Learning Applied to Document Recognition", 1998, section III.A).
    """
    channels, height, width = shape
    drawn = draw_numbers(seed, STROKES_PURPOSE, images, NUMBERS)
    points_2NQ = draw_lines(drawn)
    side = max(height, width)
    radius_N1 = side // 2 + below(drawn[:, :1], side * 7 // 10 + 1)
    points_2NQ = place_lines(points_2NQ, radius_N1, height, width)
    nearest_NHW = np.full((len(images), height, width), np.iinfo(np.int32).max, dtype=np.int32)
    columns = UNIT * np.arange(width, dtype=np.int32) + UNIT // 2
    rows = UNIT * np.arange(height, dtype=np.int32) + UNIT // 2
    for x_N, y_N in points_2NQ.astype(np.int32).transpose(2, 0, 1):
        across_NW, down_NH = (columns - x_N[:, None]) ** 2, (rows - y_N[:, None]) ** 2
        np.minimum(nearest_NHW, across_NW[:, None, :] + down_NH[:, :, None], out=nearest_NHW)
    distance_NHW = np.sqrt(nearest_NHW.astype(np.float64)).astype(np.int64)
    covered_NHW = np.clip(radius_N1[:, :, None] + UNIT // 2 - distance_NHW, 0, UNIT)
    ink_NC = np.full((len(images), 1), 255) if channels == 1 else below(drawn[:, 30 : 30 + channels], 256)
    result: NDArray[np.uint8] = (covered_NHW[:, None] * ink_NC[:, :, None, None] // UNIT).astype(np.uint8)
    return result


def draw_lines(drawn: NDArray[np.uint64]) -> Integers:
    """Draws the points (2, N, 2P) of both lines; where there is one, its points are there twice."""
    first_2NP, second_2NP = _walk(drawn[:, 6 : 6 + WALK_NUMBERS]), _walk(drawn[:, 18 : 18 + WALK_NUMBERS])
    start = below(drawn[:, 1], POINTS)
    start_2N = first_2NP[:, np.arange(len(start)), start]
    apart = below(drawn[:, 2], 5) == 0
    offset_2N = np.where(apart, below(drawn[:, 3:5].T, 2 * OFFSET + 1) - OFFSET, 0)
    second_2NP = second_2NP + (start_2N + offset_2N)[:, :, None]
    single = below(drawn[:, 5], 2) == 0
    return np.concatenate([first_2NP, np.where(single[:, None], first_2NP, second_2NP)], axis=2)


def _walk(drawn: NDArray[np.uint64]) -> Integers:
    """Draws the points (2, N, P) of a line that begins at 0, in 2^-10 lengths; `drawn`: (N, WALK_NUMBERS)."""
    bend_N3 = below(drawn[:, 0:3], BEND) + below(drawn[:, 3:6], BEND) - (BEND - 1)
    cut_N2 = np.sort(below(drawn[:, 6:8], POINTS), axis=1)
    piece_NP = (np.arange(POINTS) >= cut_N2[:, :, None]).sum(axis=1)
    corner_N = np.where(below(drawn[:, 8], 5) < 2, below(drawn[:, 9], 2 * CORNER + 1) - CORNER, 0)
    bent_NP = np.cumsum(np.take_along_axis(bend_N3, piece_NP, axis=1), axis=1) >> BEND_BITS
    angle_NP = below(drawn[:, 10:11], TURN) + bent_NP + corner_N[:, None] * (piece_NP > 0)
    length_N1 = 64 + below(drawn[:, 11:12], 193)
    steps = np.stack([length_N1 * cosine(angle_NP), length_N1 * sine(angle_NP)])
    return np.cumsum(steps, axis=2)


def place_lines(points_2NQ: Integers, radius_N1: Integers, height: int, width: int) -> Integers:
    """Scales points to five sevenths of the sides, less the pen, and moves their mean to the middle: in `UNIT`s."""
    low, high = points_2NQ.min(axis=2, keepdims=True), points_2NQ.max(axis=2, keepdims=True)
    span_2N1 = np.maximum(high - low, 1)
    sides = np.array([width, height])[:, None, None]
    space_2N1 = np.maximum(sides * UNIT * 5 // 7 - 2 * radius_N1, UNIT)
    # The axis with less space decides, for both.
    down = space_2N1[1] * span_2N1[0] < space_2N1[0] * span_2N1[1]
    space, span = (np.where(down, pair[1], pair[0]) for pair in (space_2N1, span_2N1))
    scaled = (points_2NQ - low) * space // span
    middle = scaled.sum(axis=2, keepdims=True) // scaled.shape[2]
    result: Integers = scaled - middle + sides * UNIT // 2
    return result
