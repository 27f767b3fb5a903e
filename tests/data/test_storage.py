from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from dprecipe.data.storage import MappedTexts, Storage, open_nameless
from dprecipe.faults import DataFault

CHUNKS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((0, 3), np.float32), np.ones((4, 3), np.float32)]
TEXTS = ["a", "", "ä" * 20, "\ud800", "a\0"]


@pytest.mark.parametrize("limit", [0, 30, 71, 72, 1e9])
def test_rows_are_the_same_in_memory_and_in_a_file(limit: float) -> None:
    rows = Storage(limit).rows("features")
    for chunk in CHUNKS:
        rows.append(chunk)
    result = rows.finish(np.zeros(0))
    np.testing.assert_array_equal(result, np.concatenate(CHUNKS))
    assert type(result) is np.ndarray
    result[0] = 9  # its own copy of the page
    assert (result[0] == 9).all()


@pytest.mark.parametrize("limit", [0, 200, 1e9])
def test_texts_are_the_same_in_memory_and_in_a_file(limit: float) -> None:
    texts = Storage(limit).texts("names")
    for part in (TEXTS[:2], [], TEXTS[2:]):
        texts.append(part)
    result = texts.finish()
    assert isinstance(result, tuple) == (limit == 1e9)
    assert list(result) == list(result[:]) == [result[row] for row in range(5)] == TEXTS
    assert result[-1] == "a\0"
    assert result[1:3] == tuple(TEXTS[1:3])
    with pytest.raises(IndexError):
        result[5]


@pytest.mark.parametrize("limit", [0, 1e9])
def test_nothing_at_all(limit: float) -> None:
    storage = Storage(limit)
    assert storage.rows("features").finish(np.zeros((0, 7))).shape == (0, 7)
    empty = storage.rows("features")
    empty.append(np.ones((0, 2), np.uint8))
    assert empty.finish(np.zeros(1)).shape == (0, 2)
    assert len(storage.texts("names").finish()) == 0


def test_rows_of_another_form_are_refused() -> None:
    rows = Storage().rows("features")
    rows.append(CHUNKS[0])
    with pytest.raises(ValueError, match="after rows of"):
        rows.append(CHUNKS[0].astype(np.float64))


def test_a_file_without_a_name_is_nowhere_and_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with open_nameless() as file:
        assert os.fstat(file.fileno()).st_mode & 0o077 == 0
        assert os.fstat(file.fileno()).st_dev == tmp_path.stat().st_dev
        assert list(tmp_path.iterdir()) == []


class Full:
    """A disk on which nothing is left."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, content: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self._file.close()


def test_a_full_disk_is_a_fault_that_says_what_to_do() -> None:
    rows = Storage(0, lambda part: Full(open_nameless())).rows("features")
    with pytest.raises(DataFault, match="can't be put into a file: No space left") as caught:
        rows.append(CHUNKS[0])
    assert "$TMPDIR" in caught.value.remedy


def test_texts_in_a_file_are_read_one_by_one() -> None:
    texts = Storage(0).texts("names")
    texts.append(["one", "two"])
    result = texts.finish()
    assert isinstance(result, MappedTexts)
    assert list(result) == ["one", "two"]
