"""Codebooks: exact whole numbers, ascending, of norm one, as if sorted from normal draws; files are untrusted."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from dprecipe.mechanisms.encoded.codebook import (
    LEVELS,
    Codebook,
    CodebookError,
    GradientBox,
    draw_gaussian_codebook,
    fit_codebook,
    load,
    rank_starts,
)

SIZES = [1, 2, 10, 256, 257, 1000, 26_010, 10**7]


def expanded(codebook: Codebook, group: int = 0) -> NDArray[np.float64]:
    """(n, D): every rank on its own."""
    found = codebook.groups[group]
    return np.repeat(found.levels, found.counts, axis=1)


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


@pytest.mark.parametrize("size", [10, 1000, 26_010])
def test_codewords_look_like_sorted_normal_magnitudes(size: int) -> None:
    """At every tenth of the ranks and at the largest, within half a level of the mean of directly drawn ones."""
    drawn = np.sort(np.abs(np.random.default_rng(0).standard_normal((300, size))), axis=1)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    found = expanded(draw_gaussian_codebook([size], 3000, 1e-5, 1))
    for rank in {*range(size // 5, size, max(1, size // 10)), size - 1}:
        mean, error = drawn[:, rank].mean(), drawn[:, rank].std() / math.sqrt(300)
        # Six standard errors: once in 1e9. Half a level of large groups is 0.009 standard deviations.
        assert abs(found[:, rank].mean() - mean) < 6 * error + 0.01 * mean + 0.009 / math.sqrt(size)


def test_order_statistics_of_small_groups_have_their_exact_law() -> None:
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


@pytest.mark.parametrize("sizes", [[5], [1000], [300, 7, 26]])
def test_the_box_bounds_every_codeword_rank_by_rank(sizes: list[int]) -> None:
    codebook = draw_gaussian_codebook(sizes, 200, 1e-5, 0)
    for index, (size, table) in enumerate(codebook.box.groups):
        envelope = np.repeat([bound for bound, _ in table], [count for _, count in table])
        assert len(envelope) == size
        assert (expanded(codebook, index) <= envelope).all()
        assert (envelope <= expanded(codebook, index).max(axis=0) * (1 + 2e-6)).all()


def test_the_box_of_one_codeword_is_that_codeword() -> None:
    box = draw_gaussian_codebook([1000], 1, 1e-5, 0).box
    norm, shifts = box.shifts()
    assert norm == 1.0
    assert 1 <= sum(count * bound**2 for bound, count in shifts) < 1 + 2e-6


def test_relative_noise_scales_divide_the_box() -> None:
    """By hand, in fractions: bounds over their group's scale, then over the norm of them all."""
    table = ((3, ((0.25, 2), (0.5, 1))), (2, ((0.75, 2),)))
    norm, shifts = GradientBox("sha256:" + "0" * 64, 1, table).shifts([2.0, 0.5])
    exact = 2 * Fraction(1, 8) ** 2 + Fraction(1, 4) ** 2 + 2 * Fraction(3, 2) ** 2
    assert norm >= math.sqrt(exact)
    assert norm == pytest.approx(math.sqrt(exact), rel=2e-5)
    assert [count for _, count in shifts] == [2, 1, 2]
    for (bound, _), value in zip(shifts, (0.125, 0.25, 1.5), strict=True):
        assert value / norm <= bound <= value / norm * (1 + 2e-6)


def test_a_summary_is_read_again() -> None:
    box = draw_gaussian_codebook([300, 7], 20, 1e-5, 0).box
    assert GradientBox.of_json(json.loads(json.dumps(box.to_json()))) == box


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"digest": "x", "words": 1, "groups": []},
        {"digest": "x", "words": 1, "groups": [{"size": 2, "bounds": [[1.0, 1]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1, "bounds": [[0.1, 1]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1, "bounds": [[float("nan"), 1]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 2, "bounds": [[1.0, 1], [0.5, 1]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1, "bounds": [[2.0, 1]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1, "bounds": [["1", None]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1, "bounds": 7}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1e999, "bounds": [[1.0, 1]]}]},
    ],
)
def test_a_summary_that_does_not_add_up_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="codebook"):
        GradientBox.of_json(content)


def test_files_are_read_again(tmp_path: Path) -> None:
    codebook, path = draw_gaussian_codebook([300, 7], 20, 1e-5, 0), tmp_path / "codebook.npz"
    codebook.save(path)
    assert load(path, [300, 7]).digest == codebook.digest


def test_vectors_become_the_nearest_codebook() -> None:
    vectors = np.random.default_rng(2).standard_normal((4, 100)) * 7
    found = expanded(fit_codebook(vectors, [100]))
    expected = np.sort(np.abs(vectors), axis=1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def written(path: Path, **arrays: NDArray[Any]) -> Path:
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return path


def test_a_file_of_plain_codewords_is_read(tmp_path: Path) -> None:
    vectors = np.sort(np.random.default_rng(0).random((3, 12)), axis=1)
    assert load(written(tmp_path / "a.npz", codewords=vectors), [12]).words == 3


@pytest.mark.parametrize(
    ("codewords", "reason"),
    [
        (np.array([[-1.0, 2.0, 3.0]]), "signed"),
        (np.array([[1.0, 3.0, 2.0]]), "unsorted"),
        (np.array([[1.0, 2.0]]), "shape"),
        (np.array([1.0, 2.0, 3.0]), "shape"),
        (np.array([[0.0, 0.0, 0.0]]), "shape"),
        (np.array([[1.0, 2.0, np.inf]]), "shape"),
        (np.array([[1.0, 2.0, np.nan]]), "shape"),
        (np.array([[1, 2, 3]]), "file"),
        (np.array([["a", "b", "c"]]), "file"),
        (np.zeros((0, 3)), "shape"),
    ],
)
def test_codewords_that_bound_nothing_are_refused(tmp_path: Path, codewords: NDArray[Any], reason: str) -> None:
    with pytest.raises(CodebookError) as caught:
        load(written(tmp_path / "a.npz", codewords=codewords), [3])
    assert caught.value.reason == reason


def test_other_files_are_refused(tmp_path: Path) -> None:
    good = draw_gaussian_codebook([300], 2, 1e-5, 0)
    tables = {"sizes": np.array([300]), "ranks_0": good.ranks[0], "levels_0": good.whole[0]}
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "empty.npz").write_bytes(b"")
    cases = [
        (tmp_path / "absent.npz", "file"),
        (tmp_path / "text.npz", "file"),
        (tmp_path / "empty.npz", "file"),
        (written(tmp_path / "1.npz", other=np.zeros(3)), "file"),
        (written(tmp_path / "2.npz", **{**tables, "sizes": np.array([299])}), "shape"),
        (written(tmp_path / "3.npz", **{**tables, "ranks_0": good.ranks[0] + 1}), "file"),
        (written(tmp_path / "4.npz", **{**tables, "levels_0": good.whole[0].astype(np.int32)}), "file"),
        (written(tmp_path / "5.npz", **{**tables, "levels_0": good.whole[0][:, ::-1]}), "unsorted"),
        (written(tmp_path / "6.npz", **{**tables, "levels_0": good.whole[0] * 0}), "file"),
        (written(tmp_path / "7.npz", **{**tables, "levels_0": good.whole[0][:, 1:]}), "file"),
        (written(tmp_path / "8.npz", **{**tables, "levels_0": np.array([object()])}), "file"),
    ]
    for path, reason in cases:
        with pytest.raises(CodebookError) as caught:
            load(path, [300])
        assert caught.value.reason == reason, path


def test_tables_beyond_memory_are_refused() -> None:
    with pytest.raises(CodebookError, match="may hold"):
        draw_gaussian_codebook([10**9 + 1], 1, 1e-5, 0)
    with pytest.raises(CodebookError, match="may hold"):
        draw_gaussian_codebook([1000] * 9000, 1000, 1e-5, 0)


def test_an_archive_that_would_fill_the_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "big.npz", codewords=np.zeros((100, 3)))
    monkeypatch.setattr("dprecipe.mechanisms.encoded.codebook.MAX_FILE", 1000)
    with pytest.raises(CodebookError, match="unpacks to"):
        load(path, [3])


def test_an_array_that_says_it_is_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    """The header of an array is believed only as far as the bytes behind it go."""
    import io
    import zipfile

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 3)})
    with zipfile.ZipFile(tmp_path / "liar.npz", "w") as archive:
        archive.writestr("codewords.npy", header.getvalue() + bytes(24))
    with pytest.raises(CodebookError) as caught:
        load(tmp_path / "liar.npz", [3])
    assert caught.value.reason == "file"
