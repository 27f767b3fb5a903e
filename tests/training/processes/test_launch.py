"""A process says that it waits for those that its environment speaks of."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.training.processes.launch import LAUNCHER, describe_wait


@pytest.fixture(autouse=True)
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "TORCHELASTIC_RUN_ID", LAUNCHER):
        monkeypatch.delenv(name, raising=False)


def test_a_process_that_waits_for_others_says_so_and_how_to_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_wait() == ""
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert describe_wait() == ""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert "process 1 of 2 waits" in describe_wait()
    assert "unset WORLD_SIZE RANK" in describe_wait()


@pytest.mark.parametrize("launcher", ["TORCHELASTIC_RUN_ID", LAUNCHER])
def test_those_that_a_launcher_starts_say_nothing(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(launcher, "1")
    assert describe_wait() == ""


def test_a_run_says_at_once_whom_it_waits_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dprecipe.api import run
    from dprecipe.planning.make import plan as make_plan
    from dprecipe.recipe.read import read_text
    from tests.recipe_texts import SMALL

    said: list[str] = []
    monkeypatch.setattr("dprecipe.training.run.start.write_note", lambda *lines: said.extend(lines))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("dprecipe.training.run.start.check_account", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(make_plan(read_text(SMALL)), tmp_path / "out")
    assert [line for line in said if "waits for the others" in line]


def test_processes_of_one_run_announce_it_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    assert "running" in CliRunner().invoke(app, ["run", str(missing)]).output
    monkeypatch.setenv(LAUNCHER, "1")
    assert "running" not in CliRunner().invoke(app, ["run", str(missing)]).output
