"""`dprecipe copies`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprecipe.cli.copies import copies
from dprecipe.data import load
from dprecipe.data.copies import list_copies
from dprecipe.data.known_digests import NAME, KnownDigests
from dprecipe.data.schema import Data
from dprecipe.faults import UsageFault
from tests.data.test_larger import write_arrays

IMAGES = {"source": "idx", "images": "x", "labels": "y", "shape": [4, 5], "classes": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DPRECIPE_PREPARED", raising=False)
    write_arrays(tmp_path)
    for size in (200, 300):
        text = json.dumps({"train": {**IMAGES, "records": [0, size]}, "size": size})
        data = Data.model_validate_json(text)
        load.read(data.train, data, tmp_path, "train", copies=tmp_path / "kept")
    return tmp_path / "kept"


def test_copies_are_listed_and_deleted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies(folder)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("GiB  x, y")
    assert first != second
    monkeypatch.setenv("DPRECIPE_PREPARED", str(folder))
    copies(None, [first[:5]])
    assert capsys.readouterr().out == f"deleted {first}\n"
    assert [name[:12] for name, _, _ in list_copies(folder)] == [second[:12]]
    copies(folder, ["all"])
    assert [path.name for path in folder.iterdir()] == ["secret"]
    capsys.readouterr()
    copies(folder)
    assert capsys.readouterr().out == f"{folder}: no prepared copies\n"


def test_what_is_no_copy_is_not_deleted(folder: Path, tmp_path: Path) -> None:
    for word in ("", "x"):
        with pytest.raises(UsageFault, match="prepared copies have a key"):
            copies(folder, [word])
    (folder / "notes").mkdir()
    copies(folder, ["all"])
    assert sorted(path.name for path in folder.iterdir()) == ["notes", "secret"]
    with pytest.raises(UsageFault, match="no folder is named"):
        copies(None)
    with pytest.raises(UsageFault, match="can't be read"):
        copies(tmp_path / "nowhere")


def test_copies_are_checked_byte_by_byte_whatever_is_known_of_them(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / NAME).write_text("{}")
    assert copies(folder, check=True) == 0
    assert not (folder / NAME).exists()
    whole = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in whole[:2]] == ["whole", "whole"]
    (first, _, _), _ = list_copies(folder)
    content = bytearray((folder / first / "features").read_bytes())
    content[7] ^= 1
    (folder / first / "features").write_bytes(content)
    # Whatever is remembered: as where the disk changed a byte by itself.
    monkeypatch.setattr(KnownDigests, "_read", lambda known: pytest.fail("asked what is known"))
    assert copies(folder, check=True) == 1
    assert "damaged, deleted" in capsys.readouterr().out.splitlines()[0]
    assert len(list_copies(folder)) == 1
    with pytest.raises(UsageFault, match="two errands"):
        copies(folder, ["all"], check=True)
