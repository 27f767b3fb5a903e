from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.data.apart import hold_apart
from dprecipe.faults import DataFault

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
    with pytest.raises(DataFault, match=r"data\.public is declared public, and this is the same file") as caught:
        hold_apart(block(train, public=public), root)
    assert caught.value.remedy


def test_public_test_records_in_the_training_file_under_another_name(block, root: Path) -> None:
    test = {**PUBLIC, "classes": 2, "access": "public"}
    with pytest.raises(DataFault, match=r"data\.test is declared public, and this is the same file"):
        hold_apart(block(NPZ, test=test), root)
    hold_apart(block(NPZ, test={**test, "access": "private_internal"}), root)


APART = {
    "another file": (NPZ, {**PUBLIC, "path": "b.npz"}),
    "another part of it": ({**NPZ, "records": [0, 4]}, {**PUBLIC, "records": [4, 5]}),
    "another array of it": (NPZ, {**PUBLIC, "features": "public"}),
    "no file": (NPZ, {**PUBLIC, "path": "absent.npz"}),
    "embedded": (DIGITS, {"source": "digits", "split": "test"}),
    "none declared": (NPZ, None),
}


@pytest.mark.parametrize("name", APART)
def test_records_that_are_apart(block, root: Path, name: str) -> None:
    train, public = APART[name]
    hold_apart(block(train, public=public), root)
