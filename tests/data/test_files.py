from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dprecipe.data.files import data_root, is_gzip, locate_file, open_file, read_exactly
from dprecipe.faults import DataFault


def test_data_root_takes_the_first_of_three_ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = tmp_path / "recipes" / "r.yaml"
    monkeypatch.setenv("DPRECIPE_DATA", str(tmp_path / "environment"))
    assert data_root(tmp_path / "said", recipe) == tmp_path / "said"
    assert data_root(None, recipe) == tmp_path / "environment"
    monkeypatch.setenv("DPRECIPE_DATA", "")
    assert data_root(None, recipe) == tmp_path / "recipes"
    assert data_root(None, None) == Path()


def test_missing_file_names_the_path_and_the_three_ways(tmp_path: Path) -> None:
    with pytest.raises(DataFault) as caught:
        locate_file("no/such.csv", tmp_path)
    assert str(tmp_path / "no" / "such.csv") in caught.value.message
    for way in ("--data-root", "$DPRECIPE_DATA", "the recipe's folder"):
        assert way in caught.value.remedy


@pytest.mark.parametrize("path", ["", ".", "a\0b", "x" * 5000])
def test_paths_that_are_no_file_are_faults(path: str, tmp_path: Path) -> None:
    with pytest.raises(DataFault):
        locate_file(path, tmp_path)


def test_absolute_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("x")
    assert locate_file(str(file), Path("/elsewhere")) == file


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    zipped, plain = tmp_path / "a.csv", tmp_path / "b.csv.gz"
    zipped.write_bytes(gzip.compress(b"hello"))
    plain.write_bytes(b"hello")
    assert is_gzip(zipped)
    assert not is_gzip(plain)
    for file in (zipped, plain):
        with open_file(file) as stream:
            assert read_exactly(stream, 3) == b"hel"
            assert read_exactly(stream, 100) == b"lo"
