"""Strokes, beside a slow computation of the same numbers with real sines and distances."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from dprecipe.priors import strokes
from dprecipe.priors.generate import draw_images
from dprecipe.priors.numbers import STROKES_PURPOSE, below, draw_numbers
from dprecipe.priors.schema import Prior

PRIOR = Prior(generator="strokes", images=64)
Point = tuple[float, float]


def part(number: int, limit: int) -> int:
    return int(number) * limit >> 32


def walk(drawn: list[int]) -> list[Point]:
    """The points of a line, in 2^-10 lengths."""
    bends = [part(drawn[k], 351) + part(drawn[k + 3], 351) - 350 for k in range(3)]
    first, second = sorted(part(drawn[k], 64) for k in (6, 7))
    corner = part(drawn[9], 849) - 424 if part(drawn[8], 5) < 2 else 0
    angle, length, bent = part(drawn[10], 1024), 64 + part(drawn[11], 193), 0
    x = y = 0.0
    points = []
    for point in range(64):
        bent += bends[(point >= first) + (point >= second)]
        turn = 2 * math.pi * (angle + bent // 16 + (corner if point >= first else 0)) / 1024
        x, y = x + 1024 * length * math.cos(turn), y + 1024 * length * math.sin(turn)
        points.append((x, y))
    return points


def draw(drawn: list[int], height: int, width: int) -> np.ndarray:
    """The image, one channel, in parts of the ink."""
    lines = [walk(drawn[6:18])]
    if part(drawn[5], 2):
        at = lines[0][part(drawn[1], 64)]
        moved = [part(drawn[k], 2**23 + 1) - 2**22 if part(drawn[2], 5) == 0 else 0 for k in (3, 4)]
        lines.append([(x + at[0] + moved[0], y + at[1] + moved[1]) for x, y in walk(drawn[18:30])])
    points = np.array([point for line in lines for point in line])
    side = max(height, width)
    radius = (side // 2 + part(drawn[0], side * 7 // 10 + 1)) / 16
    space = np.array([width, height]) * 5 / 7 - 2 * radius
    points = points * (space / np.ptp(points, axis=0)).min()
    points += np.array([width, height]) / 2 - points.mean(axis=0)
    image = np.zeros((height, width))
    for row in range(height):
        for column in range(width):
            nearest = min(math.hypot(column + 0.5 - x, row + 0.5 - y) for x, y in points)
            image[row, column] = min(max(radius + 0.5 - nearest, 0.0), 1.0)
    return image


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 24)])
def test_lines_are_those_of_a_slow_computation(shape: tuple[int, int, int]) -> None:
    """Rounding to sixteenths of a pixel, and to whole numbers before, moves an edge by less than three of them."""
    for image in range(8):
        made = draw_images(PRIOR, shape, range(image, image + 1))[0].astype(float)
        drawn = [int(number) for number in draw_numbers(0, STROKES_PURPOSE, range(image, image + 1), 33)[0]]
        ink = np.array([255.0] if shape[0] == 1 else [part(number, 256) for number in drawn[30:33]])
        expected = ink[:, None, None] * draw(drawn, *shape[1:])
        assert np.abs(made - expected).max() < 255 * 3 / 16
        assert np.abs(made - expected).mean() < 3


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 28, 28), (3, 60, 256), (1, 256, 4)])
def test_lines_seldom_reach_the_border_and_their_middle_is_the_middle(shape: tuple[int, int, int]) -> None:
    images = draw_images(PRIOR, shape, range(64)).max(axis=1).astype(float)
    _, height, width = shape
    total = images.sum(axis=(1, 2))
    assert (total > 0).all()
    if min(height, width) >= 28:
        border = images.copy()
        border[:, 1:-1, 1:-1] = 0
        assert (border > 0).any(axis=(1, 2)).mean() < 0.1
        middles = (images * (np.arange(height)[:, None] + 0.5)).sum(axis=(1, 2)) / total
        assert np.abs(middles / height - 0.5).mean() < 0.03


def test_points_of_the_longest_line_leave_no_gap() -> None:
    """Points that are farther apart than a pen is wide would draw dots."""
    drawn = draw_numbers(0, STROKES_PURPOSE, range(2_000), 33)
    side = 28
    radius = side // 2 + below(drawn[:, :1], side * 7 // 10 + 1)
    placed = strokes.place_lines(strokes.draw_lines(drawn), radius, side, side)
    for line in (placed[:, :, :64], placed[:, :, 64:]):
        gaps = [np.hypot(*(after - before)) for before, after in pairwise(line.transpose(2, 0, 1))]
        assert (np.max(gaps, axis=0) < 2 * radius[:, 0]).all()
