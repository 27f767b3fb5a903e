"""The private metrics of a run come back as they were recorded."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import NoReturn

import pytest

from dprecipe import durable
from dprecipe.faults import RunFailed
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.timeline import measure_run
from dprecipe.training.run.folder import RunFolder
from tests.recipe_texts import SMALL


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "private").mkdir()
    return RunFolder(tmp_path)


@pytest.mark.parametrize("figure", ["accuracy", "mean_absolute_error"])
def test_metrics_are_those_of_the_score_the_latest_of_each_step(folder: RunFolder, figure: str) -> None:
    assert folder.history() == ([], 0)
    for step, value in ((5, 0.5), (10, 0.25), (5, 0.75)):
        folder.record(step, 0.125, {figure: value, "loss": 2 * value})
    assert folder.metrics.read_text("utf-8").splitlines()[0] == f"step,epsilon,{figure},loss"
    assert folder.history()[0] == [
        {"step": 5, "epsilon": 0.125, figure: 0.75, "loss": 1.5},
        {"step": 10, "epsilon": 0.125, figure: 0.25, "loss": 0.5},
    ]


def test_a_line_that_was_cut_off_is_passed_over(folder: RunFolder) -> None:
    folder.record(1, 0.5, {"accuracy": 0.5, "loss": 1.0})
    with folder.metrics.open("a", encoding="utf-8") as file:
        file.write("2,0.5")
    points, damaged = folder.history()
    assert ([point["step"] for point in points], damaged) == ([1], 1)


def test_a_commitment_without_its_key_is_said_to_be_one(folder: RunFolder) -> None:
    with pytest.raises(RunFailed, match=r"commitment\.key: can't be read") as failed:
        _ = folder.commitment_key
    assert "own files" in str(failed.value.remedy)


def test_a_timing_that_cannot_be_written_stops_nothing(folder: RunFolder) -> None:
    file = folder.private / "timing.json"
    folder.write_timing()
    assert not file.exists()  # no run is measured here
    with measure_run():
        folder.write_timing()
        assert json.loads(file.read_text("utf-8"))["phases"][0]["phase"] == "start"
        file.unlink()
        file.mkdir()
        folder.write_timing()
    assert file.is_dir()


def test_a_folder_that_may_not_be_used_says_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(read_text(SMALL))

    def forbid(*arguments: object, **options: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "out").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", forbid)
        with pytest.raises(RunFailed, match="Permission denied") as caught:
            RunFolder.absent(tmp_path / "out")
    assert "permission" in caught.value.remedy
    with monkeypatch.context() as patch:
        patch.setattr(durable, "read_bytes", forbid)
        with pytest.raises(RunFailed, match="Permission denied") as caught:
            RunFolder.find(tmp_path / "out", plan)
    assert "permission" in caught.value.remedy
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", forbid)
        with pytest.raises(RunFailed, match="Permission denied") as caught:
            RunFolder.create(tmp_path / "new" / "out", plan)
    assert "--out" in caught.value.remedy
    with monkeypatch.context() as patch:
        patch.setattr(durable, "replace_file", forbid)
        with pytest.raises(RunFailed, match="nothing was spent") as caught:
            RunFolder(tmp_path / "out").keep_physical_batch(3)
    assert "--resume" in caught.value.remedy
