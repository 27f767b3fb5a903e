from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dprecipe.data.disjoint import check_files, check_records
from dprecipe.data.load import read
from dprecipe.faults import DataFault
from dprecipe.training.program.gather import gather_records

NPZ = {"source": "npz", "path": "a.npz", "shape": [3], "classes": 2}
PUBLIC = {"source": "npz", "path": "link.npz", "shape": [3]}
IDX = {"source": "idx", "images": "a.npz", "labels": "l"}
TABLE = {"source": "csv", "path": "a.npz", "columns": {"n": {"kind": "numeric", "min": 0, "max": 1}}}
DIGITS = {"source": "digits", "split": "train"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a.npz").write_bytes(b"")
    (tmp_path / "b.npz").write_bytes(b"")
    (tmp_path / "link.npz").symlink_to("a.npz")
    (tmp_path / "hard.npz").hardlink_to(tmp_path / "a.npz")
    return tmp_path


SAME = {
    "link": (NPZ, PUBLIC),
    "hard link": (NPZ, {**PUBLIC, "path": "hard.npz"}),
    "roundabout": (NPZ, {**PUBLIC, "path": "../{}/a.npz"}),
    "a range of it": (NPZ, {**PUBLIC, "records": [3, 5]}),
    "ranges that meet": ({**NPZ, "records": [0, 4]}, {**PUBLIC, "records": [3, 5]}),
    "images": (IDX, {"source": "idx", "images": "link.npz"}),
    "table": ({**TABLE, "label": {"column": "y", "classes": 2}}, {**TABLE, "path": "link.npz"}),
}


@pytest.mark.parametrize("name", SAME)
def test_public_records_in_the_training_file_under_another_name(block, root: Path, name: str) -> None:
    train, public = SAME[name]
    public = {key: value.format(root.name) if key == "path" else value for key, value in public.items()}
    with pytest.raises(DataFault, match=r"data\.public is declared public, but this is the file of") as caught:
        check_files(block(train, public=public), root)
    assert caught.value.remedy


def test_public_test_records_in_the_training_file_under_another_name(block, root: Path) -> None:
    test = {**PUBLIC, "classes": 2, "access": "public"}
    with pytest.raises(DataFault, match=r"data\.test is declared public, but this is the file of"):
        check_files(block(NPZ, test=test), root)
    check_files(block(NPZ, test={**test, "access": "private_internal"}), root)


DISJOINT = {
    "another file": (NPZ, {**PUBLIC, "path": "b.npz"}),
    "another part of it": ({**NPZ, "records": [0, 4]}, {**PUBLIC, "records": [4, 5]}),
    "another array of it": (NPZ, {**PUBLIC, "features": "public"}),
    "no file": (NPZ, {**PUBLIC, "path": "absent.npz"}),
    "embedded": (DIGITS, {"source": "digits", "split": "test"}),
    "none declared": (NPZ, None),
}


@pytest.mark.parametrize("name", DISJOINT)
def test_records_that_are_disjoint(block, root: Path, name: str) -> None:
    train, public = DISJOINT[name]
    check_files(block(train, public=public), root)


def archive(root: Path, **arrays: np.ndarray) -> Path:
    np.savez(root / "arrays.npz", **arrays)
    return root


TRAIN = {"source": "npz", "path": "arrays.npz", "shape": [3], "classes": 2}
OTHER = {"source": "npz", "path": "arrays.npz", "shape": [3], "features": "other"}
RECORDS_N3 = np.random.default_rng(5).random((9000, 3), dtype=np.float32)
NEW_M3 = np.random.default_rng(6).random((5000, 3), dtype=np.float32)
ONE_KNOWN_M3 = np.concatenate([NEW_M3, RECORDS_N3[8123:8124]])


def compare(block, root: Path, public: dict[str, object]) -> None:
    data = block(TRAIN, public=public, size=len(RECORDS_N3))
    check_files(data, root)
    sources = {"train": data.train, "public": data.public}
    check_records(data, root, lambda role: role in sources and read(sources[role], data, root, role)[0])


HOLDS = {
    "the array once more": {"other": RECORDS_N3},
    "one of its records": {"other": ONE_KNOWN_M3},
    "the records in another order": {"other": RECORDS_N3[::-1]},
    "doubles": {"other": ONE_KNOWN_M3.astype(np.float64)},
    "a zero with a sign": {"features": np.where(RECORDS_N3 < 0.5, 0.0, 1), "other": np.full((1, 3), -0.0)},
}


@pytest.mark.parametrize("name", HOLDS)
def test_an_array_of_the_training_file_that_holds_a_training_record(block, tmp_path: Path, name: str) -> None:
    arrays = {"features": RECORDS_N3, "labels": np.zeros(len(RECORDS_N3), np.int64), **HOLDS[name]}
    with pytest.raises(DataFault, match=r"array 'other' is declared public .* equals a training") as caught:
        compare(block, archive(tmp_path, **arrays), OTHER)
    assert "separate file" in (caught.value.remedy or "")
    # The remedy works: nobody can tell copies in another file from other people's records.
    np.savez(tmp_path / "own.npz", other=arrays["other"])
    compare(block, tmp_path, {**OTHER, "path": "own.npz"})


def test_an_array_of_the_training_file_that_holds_none(block, tmp_path: Path) -> None:
    labels = np.zeros(len(RECORDS_N3), np.int64)
    root = archive(tmp_path, features=RECORDS_N3, labels=labels, other=NEW_M3)
    compare(block, root, OTHER)


def test_ranges_of_different_arrays_are_compared_too(block, tmp_path: Path) -> None:
    """Record 5 of one array may be record 0 of another."""
    moved = np.concatenate([NEW_M3[:2], RECORDS_N3[:3]])
    root = archive(tmp_path, features=RECORDS_N3, labels=np.zeros(len(RECORDS_N3), np.int64), other=moved)
    data = block({**TRAIN, "records": [0, 3]}, public={**OTHER, "records": [4, 5]}, size=3)
    check_files(data, root)
    sources = {"train": data.train, "public": data.public}
    with pytest.raises(DataFault, match="equals a training record"):
        check_records(data, root, lambda role: role in sources and read(sources[role], data, root, role)[0])


def test_a_run_refuses_them_before_anything_is_built(block, tmp_path: Path) -> None:
    root = archive(tmp_path, features=RECORDS_N3, labels=np.zeros(len(RECORDS_N3), np.int64), other=RECORDS_N3[:7])
    test = {**TRAIN, "features": "other", "labels": "other_labels", "access": "public"}
    np.savez(root / "arrays.npz", **{**np.load(root / "arrays.npz"), "other_labels": np.ones(7, np.int64)})
    data = block(TRAIN, test=test, size=len(RECORDS_N3))
    plan = SimpleNamespace(
        data=data,
        mechanism="dpsgd",
        mechanism_plan=SimpleNamespace(reads_training_records=True, identity=None),
        runtime=SimpleNamespace(prepared=None),
        source=SimpleNamespace(file="recipe.yaml"),
        budget=SimpleNamespace(account=None),
        model=None,
    )
    with pytest.raises(DataFault, match="equals a training record"):
        gather_records(plan, root)  # type: ignore[arg-type]
