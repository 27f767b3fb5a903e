"""Codebooks: exact whole numbers, ascending, of norm one, as if sorted from normal draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from dprecipe.mechanisms.encoded.box import LEVELS
from dprecipe.mechanisms.encoded.codebook import (
    Codebook,
    CodebookError,
    draw_gaussian_codebook,
    fit_codebook,
    rank_starts,
)
from tests.sweeps import sweep

SIZES = [1, 2, 10, 256, 257, 1000, 26_010, 10**7]


def expanded(codebook: Codebook, group: int = 0) -> NDArray[np.float64]:
    """(n, D): every rank on its own."""
    actual = codebook.groups[group]
    return np.repeat(actual.levels, actual.counts, axis=1)


@pytest.mark.parametrize("size", SIZES)
def test_levels_cover_every_rank_once_and_the_largest_ranks_singly(size: int) -> None:
    starts = rank_starts(size)
    assert starts[0] == 0
    assert len(starts) <= LEVELS + 1
    assert (np.diff(starts) > 0).all()
    assert starts[-1] == size - 1
    if size <= LEVELS:
        assert len(starts) == size


@pytest.mark.parametrize("size", SIZES)
def test_codewords_ascend_are_not_negative_and_have_norm_one(size: int) -> None:
    codebook = draw_gaussian_codebook([size], 20, 1e-5, 3)
    (group,) = codebook.groups
    assert group.levels.shape == (20, len(group.ranks))
    assert (group.levels >= 0).all()
    assert (np.diff(group.levels, axis=1) >= 0).all()
    np.testing.assert_allclose((group.levels**2) @ group.counts, 1.0, rtol=1e-12)
    assert group.counts.sum() == size


@pytest.mark.parametrize("size", sweep([10, 1000, 26_010], (0, 1)))
def test_codewords_look_like_sorted_normal_magnitudes(size: int) -> None:
    """At every tenth of the ranks and at the largest, within half a level of the mean of directly drawn ones."""
    drawn = np.sort(np.abs(np.random.default_rng(0).standard_normal((300, size))), axis=1)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    actual = expanded(draw_gaussian_codebook([size], 3000, 1e-5, 1))
    for rank in {*range(size // 5, size, max(1, size // 10)), size - 1}:
        mean, error = drawn[:, rank].mean(), drawn[:, rank].std() / math.sqrt(300)
        # Six standard errors: once in 1e9. Half a level of large groups is 0.009 standard deviations.
        assert abs(actual[:, rank].mean() - mean) < 6 * error + 0.01 * mean + 0.009 / math.sqrt(size)


def test_order_statistics_of_small_groups_have_their_exact_distribution() -> None:
    """The smallest of three |N| has the CDF 1 - (1 - F)^3: a Kolmogorov-Smirnov test at 1e-9."""
    magnitudes = expanded(draw_gaussian_codebook([3], 20_000, 0.0, 7))
    ratio = magnitudes[:, 0] / magnitudes[:, 2]
    drawn = np.sort(np.abs(np.random.default_rng(1).standard_normal((20_000, 3))), axis=1)
    assert stats.ks_2samp(ratio, drawn[:, 0] / drawn[:, 2]).pvalue > 1e-9


def test_the_floor_turns_small_entries_to_zero() -> None:
    codebook = draw_gaussian_codebook([1000], 5, 0.5, 0)
    share = (expanded(codebook) == 0).mean()
    assert abs(share - special.erf(0.5 / math.sqrt(2))) < 0.05
    assert (expanded(draw_gaussian_codebook([1000], 5, 1e-5, 0)) == 0).mean() < 0.005


def test_a_codebook_is_a_function_of_its_arguments() -> None:
    one, again, other = (
        draw_gaussian_codebook([500, 20], 9, 1e-5, 4),
        draw_gaussian_codebook([500, 20], 9, 1e-5, 4),
        draw_gaussian_codebook([500, 20], 9, 1e-5, 5),
    )
    assert one.digest == again.digest != other.digest
    assert one.digest != draw_gaussian_codebook([520], 9, 1e-5, 4).digest
    # Pinned: a certificate made today has to be planned again tomorrow.
    assert one.digest == "sha256:" + DIGEST


DIGEST = "614d70308c8870d6a85d889a1311a73f765fa9f8c1295467a8bcdc5ec6a92f5a"


def test_groups_are_slices_in_order_and_share_one_norm() -> None:
    codebook = draw_gaussian_codebook([500, 20, 1], 9, 1e-5, 4)
    assert [(group.start, group.size) for group in codebook.groups] == [(0, 500), (500, 20), (520, 1)]
    squares = sum((group.levels**2) @ group.counts for group in codebook.groups)
    np.testing.assert_allclose(squares, 1.0, rtol=1e-12)
    assert (codebook.words, codebook.dimension) == (9, 521)


def test_vectors_become_the_nearest_codebook() -> None:
    vectors = np.random.default_rng(2).standard_normal((4, 100)) * 7
    actual = expanded(fit_codebook(vectors, [100]))
    expected = np.sort(np.abs(vectors), axis=1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_tables_beyond_memory_are_refused() -> None:
    with pytest.raises(CodebookError, match="the limit of a codebook"):
        draw_gaussian_codebook([10**9 + 1], 1, 1e-5, 0)
    with pytest.raises(CodebookError, match="the limit of a codebook"):
        draw_gaussian_codebook([1000] * 9000, 1000, 1e-5, 0)
