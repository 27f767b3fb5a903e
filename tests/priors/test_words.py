"""Random words and tables: the same bytes wherever they are made."""

from __future__ import annotations

import numpy as np
import pytest

from dprecipe.priors import generate, numbers

M0, M1, W0, W1 = 0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
WORD = 2**64


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Philox-4x64-10 in whole numbers: Salmon et al. 2011, section 4."""
    c, k = list(counter), list(key)
    for _ in range(10):
        (high0, low0), (high1, low1) = divmod(M0 * c[0], WORD), divmod(M1 * c[2], WORD)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + W0) % WORD, (k[1] + W1) % WORD]
    return c


def test_numbers_are_the_halves_of_philox_words_counted_from_1() -> None:
    drawn = numbers.draw_numbers(7, 2, range(3, 5), 17)
    for row, image in enumerate((3, 4)):
        expected = [word for count in (1, 2, 3) for word in philox((count, image, 0, 0), (7, 2))]
        halves = [half for word in expected for half in (word >> 32, word & 0xFFFFFFFF)]
        assert drawn[row].tolist() == halves[:17]


def test_below_reaches_both_ends_and_no_further() -> None:
    drawn = np.array([0, 2**32 - 1, 2**31], dtype=np.uint64)
    assert numbers.below(drawn, 7).tolist() == [0, 6, 3]
    assert numbers.below(drawn, 1).tolist() == [0, 0, 0]


def distance_from_half(table: np.ndarray) -> float:
    return float(np.abs(table - np.floor(table) - 0.5).min())


@pytest.mark.parametrize("side", [8, 28, 32, 64, 96, 224])
def test_no_entry_of_a_table_is_so_near_to_a_half_that_a_library_could_round_it_otherwise(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []

    def record(table: np.ndarray) -> np.ndarray:
        finite = table[np.isfinite(table)]
        exact = finite * 2 == np.round(finite * 2)  # halves that are halves: powers of 2, exact in any library
        seen.append(finite[~exact])
        return np.floor(table + 0.5).astype(np.int64)

    for module in (generate, numbers):
        monkeypatch.setattr(module, "round_table", record)
    numbers.sines.__wrapped__()
    generate.radius_table(side)
    generate.amplitude_table.__wrapped__(side)
    generate.magnitude_table.__wrapped__()
    generate.growth_table.__wrapped__()
    assert len(seen) == 5
    for table in seen:
        # A library errs by a few units in the last place of a number.
        assert distance_from_half(table) > 64 * np.finfo(float).eps * float(np.abs(table[table < 2**21]).max())


def test_images_reach_their_range_of_bytes() -> None:
    planes = np.arange(2 * 3 * 4 * 4, dtype=np.int64).reshape(2, 3, 4, 4) ** 3
    drawn = np.full((2, 11), 2**31, dtype=np.uint64)
    image = generate.as_bytes(planes, drawn)
    assert image.dtype == np.uint8
    assert image.min() == 48
    assert image.max() == 207
    flat = generate.as_bytes(np.zeros((1, 1, 4, 4), dtype=np.int64), drawn[:1])
    assert set(flat.ravel().tolist()) == {48}
