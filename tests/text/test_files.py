"""Files that are no recipes: one clear finding each (Y101, Y102, Y103), and quickly."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dprecipe.faults import RecipeError
from dprecipe.text.files import read_file


def finding_of(path: str) -> tuple[str, str]:
    with pytest.raises(RecipeError) as caught:
        read_file(path)
    (finding,) = caught.value.findings
    assert finding.remedy
    assert finding.place is not None
    assert finding.place.file == path
    return finding.code, finding.message


def test_a_text_comes_back_verbatim(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes("a: é\r\nb: 1\n".encode())
    assert read_file(str(path)) == "a: é\r\nb: 1\n"


def test_missing_folder_device_and_odd_paths(tmp_path: Path) -> None:
    assert finding_of(str(tmp_path / "no.yaml")) == ("Y101", "there is no such file")
    assert finding_of(str(tmp_path)) == ("Y101", "it is a folder")
    assert finding_of("a\0b")[0] == "Y101"
    assert finding_of("a" * 5000)[0] == "Y101"
    assert finding_of(str(tmp_path / "no.yaml" / "below"))[0] == "Y101"


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert finding_of(str(tmp_path / "pipe")) == ("Y101", "it is not a regular file")


def test_large_and_binary_files(tmp_path: Path) -> None:
    large, binary = tmp_path / "large.yaml", tmp_path / "binary.yaml"
    large.write_bytes(b"a: 1\n" * 2_000_000)
    binary.write_bytes(b"a: 1\nb: \xff\xfe")
    start = time.process_time()
    assert finding_of(str(large))[0] == "Y102"
    assert time.process_time() - start < 1
    assert finding_of(str(binary)) == ("Y103", "the file is not UTF-8 text")
