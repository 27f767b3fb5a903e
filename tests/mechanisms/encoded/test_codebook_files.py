"""Files of codebooks are untrusted: what is no codebook is refused, and nothing unpacks beyond the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dprecipe.mechanisms.encoded.codebook import CodebookError, draw_gaussian_codebook, load_codebook


def test_files_are_read_again(tmp_path: Path) -> None:
    codebook, path = draw_gaussian_codebook([300, 7], 20, 1e-5, 0), tmp_path / "codebook.npz"
    path.write_bytes(codebook.to_bytes())
    assert load_codebook(path, [300, 7]).digest == codebook.digest


def written(path: Path, **arrays: NDArray[Any]) -> Path:
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return path


def test_a_file_of_plain_codewords_is_read(tmp_path: Path) -> None:
    vectors = np.sort(np.random.default_rng(0).random((3, 12)), axis=1)
    assert load_codebook(written(tmp_path / "a.npz", codewords=vectors), [12]).words == 3


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
        load_codebook(written(tmp_path / "a.npz", codewords=codewords), [3])
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
            load_codebook(path, [300])
        assert caught.value.reason == reason, path


def test_an_archive_that_would_fill_the_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "big.npz", codewords=np.zeros((100, 3)))
    monkeypatch.setattr("dprecipe.mechanisms.encoded.codebook.MAX_FILE", 1000)
    with pytest.raises(CodebookError, match="unpacks to"):
        load_codebook(path, [3])


def test_an_array_that_says_it_is_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    """The header of an array is believed only as far as the bytes behind it go."""
    import io
    import zipfile

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 3)})
    with zipfile.ZipFile(tmp_path / "liar.npz", "w") as archive:
        archive.writestr("codewords.npy", header.getvalue() + bytes(24))
    with pytest.raises(CodebookError) as caught:
        load_codebook(tmp_path / "liar.npz", [3])
    assert caught.value.reason == "file"
