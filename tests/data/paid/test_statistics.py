"""Sensitivities: attained, and never exceeded, by exact sums; whatever the rows, the units and the relation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dprecipe.data.paid.bounds import ColumnBounds
from dprecipe.data.paid.covariance import BITS as COVARIANCE_BITS
from dprecipe.data.paid.covariance import sum_covariance
from dprecipe.data.paid.items import count_items
from dprecipe.data.paid.moments import BITS as MOMENT_BITS
from dprecipe.data.paid.moments import FREE_WEIGHT, sum_moments
from dprecipe.data.paid.rows import UnitRows

Rows = NDArray[np.float32]
Data = list[Rows]
"""The rows of each unit, (rows, D) each."""
WILD = (0.0, 1.0, -1.0, 0.5, 3e38, -3e38, math.inf, -math.inf, math.nan, 1e-30, 2.0 / 3.0)


def sums(units: Data, total: Callable[[Callable[[NDArray[np.int64]], Rows], UnitRows], NDArray[np.int64]]) -> list[int]:
    rows = np.concatenate(units)
    ids = np.repeat(np.arange(len(units)), [len(unit) for unit in units])
    shuffled = np.random.default_rng(len(rows)).permutation(len(rows))
    return [int(value) for value in total(lambda i: rows[shuffled][i], UnitRows.of(ids[shuffled], len(rows))).ravel()]


def bounds_of(count: int, low: float = -1.0, high: float = 1.0) -> ColumnBounds:
    return ColumnBounds(np.arange(count), np.full(count, low), np.full(count, high))


def moments(units: Data) -> tuple[list[int], list[int]]:
    flat = sums(units, lambda read, rows: sum_moments(read, rows, bounds_of(units[0].shape[1])))
    return flat[: len(flat) // 2], flat[len(flat) // 2 :]


def squared_distance(first: Data, second: Data, square: tuple[int, int]) -> int:
    """Of (S1, λ S2), times (2^30 · denominator)², exactly; λ = numerator/denominator."""
    (p, q), (r, s) = moments(first), moments(second)
    numerator, denominator = square
    return sum((denominator * (a - b)) ** 2 for a, b in zip(p, r, strict=True)) + sum(
        (numerator * (a - b)) ** 2 for a, b in zip(q, s, strict=True)
    )


def covariance_distance(first: Data, second: Data) -> int:
    a, b = (sums(units, lambda read, rows: sum_covariance(read, rows, 1.0)) for units in (first, second))
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def random_unit(rng: np.random.Generator, width: int) -> Rows:
    count = int(rng.choice([1, 2, 3, 7, 100]))
    style = rng.integers(4)
    if style == 0:
        rows = rng.choice([-1.0, 1.0], (count, width))
    elif style == 1:
        rows = rng.uniform(-2, 2, (count, width))
    elif style == 2:
        rows = np.eye(width)[rng.integers(width, size=count)] * rng.choice([-1.0, 1.0, 0.3])
    else:
        rows = rng.choice(WILD, (count, width))
    return rows.astype(np.float32)


ADVERSARIES: list[Rows] = [
    np.ones((1, 3), np.float32),
    -np.ones((1, 3), np.float32),
    np.zeros((1, 3), np.float32),
    np.tile(np.float32([1, 1, 1]), (50, 1)),
    np.float32([[1, 1, 1], [-1, -1, -1]]),
    np.float32([[1, 0, 0]]),
    np.float32([[0, 1, 0]] * 3),
    np.full((2, 3), np.nan, np.float32),
    np.full((2, 3), np.float32(1) / 3),
    np.float32([[np.nan, 1, 1], [1, 1, 1]]),
]


def pairs(trials: int) -> list[tuple[Data, Rows, Rows]]:
    rng = np.random.default_rng(7)
    others = [random_unit(rng, 3) for _ in range(3)]
    result = [(others, a, b) for a in ADVERSARIES for b in ADVERSARIES]
    return result + [(others, random_unit(rng, 3), random_unit(rng, 3)) for _ in range(trials)]


def test_moments_move_no_further_than_claimed_and_as_far() -> None:
    one = (1 << MOMENT_BITS) ** 2
    removed, replaced = 0, 0
    for others, first, second in pairs(150):
        removed = max(removed, squared_distance([*others, first], others, (1, 1)))
        replaced = max(replaced, squared_distance([*others, first], [*others, second], (1665, 1000)))
    assert removed == 3 * one
    assert replaced == 3 * 4 * one * 1000**2
    assert FREE_WEIGHT == 1.665 < math.sqrt((11 + 5 * math.sqrt(5)) / 8)


def test_a_unit_that_is_blanked_out_moves_moments_as_one_that_is_removed() -> None:
    """Zero out: the unit stays, with rows that contribute nothing."""
    one = (1 << MOMENT_BITS) ** 2
    blank = np.full((1, 3), np.nan, np.float32)
    worst = max(squared_distance([*o, u], [*o, blank], (1, 1)) for o, u, _ in pairs(80))
    assert worst == 3 * one


def test_a_heavier_second_moment_would_cost_more() -> None:
    """The search can fail: with λ above 1.665 it finds more than 2 a column."""
    rng = np.random.default_rng(0)
    others = [random_unit(rng, 1)]
    grid = [np.full((1, 1), x, np.float32) for x in np.linspace(-1, 1, 15)]
    worst = max(squared_distance([*others, a], [*others, b], (5, 2)) for a in grid for b in grid)
    assert worst > 4.5 * (1 << MOMENT_BITS) ** 2 * 4


@pytest.mark.parametrize("columns", [1, 4])
def test_channels_of_images_are_columns(columns: int) -> None:
    images = np.random.default_rng(1).uniform(-1, 1, (20, columns, 5, 5)).astype(np.float32)
    total = sum_moments(lambda i: images[i], UnitRows.of(None, 20), bounds_of(columns)) / 2.0**MOMENT_BITS
    np.testing.assert_allclose(total[0], images.mean((2, 3), np.float64).sum(0), atol=1e-6)
    np.testing.assert_allclose(total[1], (np.square(images, dtype=np.float64).mean((2, 3)) - 1).sum(0), atol=1e-6)


def test_the_covariance_moves_no_further_than_claimed_and_as_far() -> None:
    one = (1 << COVARIANCE_BITS) ** 2
    removed, replaced = 0, 0
    for others, first, second in pairs(200):
        removed = max(removed, covariance_distance([*others, first], others))
        replaced = max(replaced, covariance_distance([*others, first], [*others, second]))
    assert 0.9999 * one < removed <= one
    assert 0.9999 * 2 * one < replaced <= 2 * one


def test_the_covariance_is_that_of_clipped_rows() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(30_000, 5)).astype(np.float32)
    total = sum_covariance(lambda i: x[i], UnitRows.of(None, len(x)), 2.0) / 2.0**COVARIANCE_BITS
    y = x.astype(np.float64) / np.maximum(2.0, np.linalg.norm(x.astype(np.float64), axis=1))[:, None]
    np.testing.assert_allclose(total, y.T @ y, rtol=1e-3, atol=0.5)


def test_sums_do_not_depend_on_the_order_of_units_or_on_parts() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(20_000, 3)).astype(np.float32)
    units = rng.integers(0, 500, len(x))
    order = rng.permutation(len(x))
    for total in (
        lambda x, u: sum_moments(lambda i: x[i], UnitRows.of(u, len(x)), bounds_of(3)),
        lambda x, u: sum_covariance(lambda i: x[i], UnitRows.of(u, len(x)), 1.0),
    ):
        renumbered = (units * 7 + 3) % 500
        np.testing.assert_array_equal(total(x[order], units[order]), total(x[order], renumbered[order]))
    np.testing.assert_array_equal(
        sum_covariance(lambda i: x[i], UnitRows.of(None, len(x)), 1.0),
        sum_covariance(lambda i: x[order][i], UnitRows.of(None, len(x)), 1.0),
    )


def test_no_units_at_all() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert not sum_moments(lambda i: empty[i], UnitRows.of(None, 0), bounds_of(3)).any()
    assert sum_covariance(lambda i: empty[i], UnitRows.of(None, 0), 1.0).shape == (3, 3)
    assert UnitRows.of(np.zeros(0, np.int64), 0).count == 0


def test_parts_divide_no_unit() -> None:
    units = np.random.default_rng(4).integers(0, 40, 1000)
    rows = UnitRows.of(units, 1000)
    parts = list(rows.parts(100))
    assert sum(part.count for part in parts) == rows.count == 40
    np.testing.assert_array_equal(np.concatenate([part.order for part in parts]), rows.order)
    assert [len(set(units[part.order])) for part in parts] == [part.count for part in parts]
    single = UnitRows.of(np.zeros(1000, np.int64), 1000)
    assert [len(part.order) for part in single.parts(10)] == [1000]


KEY = bytes(range(32))


def item_counts(units: list[list[list[str]]], max_items: int, key: bytes = KEY) -> dict[tuple[int, str], int]:
    rows = [row for unit in units for row in unit]
    ids = np.repeat(np.arange(len(units)), [len(unit) for unit in units])
    return count_items([rows], UnitRows.of(ids, len(rows)), max_items, key)


def test_items_of_a_unit_move_at_most_k_counts_by_one() -> None:
    rng = np.random.default_rng(5)
    words = [f"w{number}" for number in range(30)]
    worst = 0
    for _ in range(80):
        units = [[list(rng.choice(words, rng.integers(0, 25))) for _ in range(rng.integers(1, 5))] for _ in range(4)]
        whole, removed = item_counts(units, 5), item_counts(units[:-1], 5)
        moved = [whole.get(item, 0) - removed.get(item, 0) for item in whole.keys() | removed.keys()]
        assert set(moved) <= {0, 1}
        worst = max(worst, sum(moved))
        # No choice depends on the place of a unit, or on the others.
        assert item_counts(units[::-1], 5) == whole
        assert all(count >= 1 for count in whole.values())
        assert list(whole) == sorted(whole, key=lambda item: item[1].encode())
    assert worst == 5


def test_a_unit_chooses_evenly_among_its_items() -> None:
    """Over keys: 1,000 choices of 2 of 8 items. Each is chosen 250 times, give or take 5 standard deviations of 13.7:
    the chance that any of 8 is not is below 8 · 6e-7."""
    own = [[["a", "b", "c", "d", "e", "f", "g", "h"]]]
    chosen = [item for key in range(1000) for item in item_counts(own, 2, key.to_bytes(32, "big"))]
    assert len(chosen) == 2000
    times = [chosen.count(item) for item in set(chosen)]
    assert len(times) == 8
    assert all(abs(count - 250) < 69 for count in times)
