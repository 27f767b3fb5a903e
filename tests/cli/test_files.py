"""Documents in the folder of `--out`, and notes on progress."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dprecipe.cli import files
from dprecipe.faults import UsageFault

MASK = os.umask(0)
os.umask(MASK)


def test_documents_are_written_into_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    files.write_documents(folder, {})
    assert folder.is_dir()
    files.write_documents(folder, {"one.json": "{}\n", "one.svg": "ε"})
    assert {path.name: path.read_text("utf-8") for path in folder.iterdir()} == {"one.json": "{}\n", "one.svg": "ε"}


def test_a_folder_that_cannot_be_made_is_a_usage_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageFault, match="can't be written"):
        files.write_documents(tmp_path / "file", {})


def test_an_output_is_replaced_whole_and_never_by_chance(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    files.check_output(path, force=False)
    files.replace_output(path, b"one")
    files.replace_output(path, b"two")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(path.name, b"two")]
    assert path.stat().st_mode & 0o777 == 0o666 & ~MASK
    files.check_output(path, force=True)
    with pytest.raises(UsageFault, match="exists already"):
        files.check_output(path, force=False)
    with pytest.raises(UsageFault, match="no folder"):
        files.check_output(tmp_path / "absent" / "file", force=False)
    with pytest.raises(UsageFault, match="can't be written"):
        files.replace_output(tmp_path, b"")


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("recipes/books/one.npz", "books/one.npz"),
        ("one.npz", "../one.npz"),
        ("recipes/a b.npz", '"a b.npz"'),
        ("recipes/ε: 1.npz", '"ε: 1.npz"'),
    ],
)
def test_a_path_is_written_as_a_recipe_has_it(tmp_path: Path, file: str, path: str) -> None:
    assert files.path_in_recipe(tmp_path / "recipes" / "a.yaml", tmp_path / file) == path


def test_notes_are_limited_to_one_in_each_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 2.5, 2.5, 3.0])
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    report = files.limit_notes()
    for note in ("first", "second", "third"):
        report(note)
    assert capsys.readouterr().err == "second\n"


def test_notes_before_the_first_interval_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    files.limit_notes()("soon")
    assert capsys.readouterr().err == ""
