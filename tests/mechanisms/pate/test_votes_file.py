"""Votes from a file: every way they can be wrong has an answer of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.faults import DataFault
from dprecipe.mechanisms.pate.schema import VotesFile
from dprecipe.mechanisms.pate.votes_file import Expected, count_labels, read

TEACHERS, CLASSES, PUBLIC = 5, 3, 4
COUNTS = np.array([[5, 0, 0], [0, 4, 1], [1, 2, 2], [0, 0, 5]])
LABELS = np.array([[0, 0, 0, 0, 0], [1, 1, 2, 1, 1], [0, 1, 2, 1, 2], [2, 2, 2, 2, 2]])


def stored(tmp_path: Path, array: Any, name: str = "votes") -> Path:
    np.savez_compressed(tmp_path / "votes.npz", **{name: array})
    return tmp_path


def votes(root: Path, **fields: Any) -> Any:
    return read(VotesFile(path="votes.npz", **fields), root, Expected(PUBLIC, TEACHERS, CLASSES))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.uint64])
@pytest.mark.parametrize("array", [COUNTS, LABELS])
def test_counts_and_labels_give_the_same_votes(tmp_path: Path, array: Any, dtype: Any) -> None:
    actual = votes(stored(tmp_path, array.astype(dtype)))
    assert actual.dtype == np.int32
    assert actual.tolist() == COUNTS.tolist()


def test_rows_and_arrays_are_selected(tmp_path: Path) -> None:
    root = stored(tmp_path, np.concatenate([COUNTS[:1], COUNTS, COUNTS[:2]]), "ensemble")
    assert votes(root, array="ensemble", records=(1, 5)).tolist() == COUNTS.tolist()


def test_as_many_teachers_as_classes_means_counts(tmp_path: Path) -> None:
    root = stored(tmp_path, np.array([[1, 1, 1], [0, 3, 0], [2, 1, 0], [0, 1, 2]]))
    actual = read(VotesFile(path="votes.npz"), root, Expected(PUBLIC, 3, 3))
    assert actual[0].tolist() == [1, 1, 1]
    with pytest.raises(DataFault, match="a row does not have the votes of 3 teachers"):
        read(VotesFile(path="votes.npz"), stored(tmp_path, np.array([[0, 0, 0]] * 4)), Expected(PUBLIC, 3, 3))


def changed(row: int, values: list[int]) -> Any:
    array = COUNTS.copy()
    array[row] = values
    return array


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (changed(2, [1, 2, 1]).astype(np.uint8), "row 2 has 4; 1 of 4 rows"),
        (changed(1, [9, 0, 0]), "row 1 has more than 5; 1 of"),
        (changed(3, [-1, 3, 3]), "row 3"),
        (np.full((4, 3), 2**62), "row 0 has more than 5; 4 of"),
        (np.full((4, 3), 2**63 + 1, np.uint64), "row 0 has more than 5; 4 of"),
        (np.where(LABELS == 2, 3, LABELS), "holds 3"),
        (np.where(LABELS == 2, -1, LABELS), "holds -1"),
        (COUNTS.astype(float), "holds float64, expected integers"),
        (np.full((4, 3), np.nan), "holds float64, expected integers"),
        (COUNTS > 1, "holds bool, expected integers"),
        (COUNTS[:3], r"3 rows, of which \[0, 3\)"),
        (np.concatenate([COUNTS, COUNTS]), r"8 rows, of which \[0, 8\)"),
        (np.zeros((4, 4), int), r"has 4 columns, expected 3 \(counts of each class\) or 5"),
        (np.zeros(4, int), "has the shape"),
        (np.zeros((4, 3, 2), int), "has the shape"),
    ],
)
def test_what_is_no_votes_is_refused(tmp_path: Path, array: Any, message: str) -> None:
    with pytest.raises(DataFault) as caught:
        votes(stored(tmp_path, array))
    assert re.search(message, f"{caught.value.message}; {caught.value.private}")
    assert not re.search(r"row [0-9]|label -?[0-9]", caught.value.message)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("code from a data file ran",))

    array = np.empty((4, 3), object)
    array[:] = Bomb()
    with pytest.raises(DataFault, match="Python objects"):
        votes(stored(tmp_path, array))


def test_a_missing_array_and_a_missing_or_damaged_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataFault, match="no such data file"):
        votes(tmp_path)
    with pytest.raises(DataFault, match="has no array 'votes'"):
        votes(stored(tmp_path, COUNTS, "counts"))
    (tmp_path / "votes.npz").write_bytes(b"no archive")
    with pytest.raises(DataFault, match="not a NumPy archive"):
        votes(tmp_path)


def test_rows_beyond_the_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFault, match="does not have a row for each of the 4 records") as caught:
        votes(stored(tmp_path, COUNTS), records=(2, 6))
    assert caught.value.private == "4 rows, of which [2, 6) are read"


def test_counting_in_blocks_is_counting() -> None:
    labels = np.random.default_rng(0).integers(7, size=(3000, 2001), dtype=np.uint16)
    actual = count_labels(labels, 7)
    assert all(actual[:, j].tolist() == (labels == j).sum(axis=1).tolist() for j in range(7))


def test_counts_in_bytes_of_many_teachers(tmp_path: Path) -> None:
    root = stored(tmp_path, np.array([[200, 100, 0]] * 4, np.uint8))
    assert read(VotesFile(path="votes.npz"), root, Expected(PUBLIC, 300, 3)).tolist() == [[200, 100, 0]] * 4
