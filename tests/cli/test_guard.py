"""What can't be printed is told, and stops no run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dprecipe
from dprecipe.cli.guard import CLOSED, Output

RECIPES = Path(__file__).parents[2] / "recipes"


def shell(line: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A line of a shell, in which `$D` is the program and `$1` … are the arguments."""
    program = f"{sys.executable} -m dprecipe"
    return subprocess.run(
        ["bash", "-c", line, "bash", *map(str, arguments)],
        capture_output=True, text=True, check=False, env={**os.environ, "D": program},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("where", "reason"), [("> /dev/full", "No space left on device"), (">&-", CLOSED)], ids=["full", "closed"]
)
@pytest.mark.parametrize("command", ["plan", pytest.param("show", marks=pytest.mark.slow), "--help #"])
def test_an_answer_that_cannot_be_written_is_a_failure(command: str, where: str, reason: str) -> None:
    done = shell(f"$D {command.replace('#', where + ' #')} $1 {where}", RECIPES / "quickstart.yaml")
    assert done.returncode == 4
    assert f"error: the output can't be written: {reason}" in done.stderr
    assert "internal" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_finding_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("recipe: dprecipe/v1\n", encoding="utf-8")
    assert shell("$D validate $1 > /dev/full", tmp_path / "bad.yaml").returncode == 1


def test_a_reader_that_leaves_is_no_news() -> None:
    done = shell("$D plan $1 | true; exit ${PIPESTATUS[0]}", RECIPES / "quickstart.yaml")
    assert done.returncode in (0, 4)
    assert done.stderr == ""


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("> /dev/full 2> /dev/full", id="full"),
        pytest.param(">&- 2>&- <&-", id="closed"),
    ],
)
@pytest.mark.slow
def test_a_run_goes_on_without_anyone_to_tell(tmp_path: Path, where: str) -> None:
    """And what libraries print goes nowhere: not into the ledger, which could get the descriptor that was closed."""
    out = tmp_path / "run"
    run = f"$D run $1 --out $2 --set training.steps=9 --set release.report=false {where}"
    done = shell(run, RECIPES / "quickstart.yaml", out)
    assert done.returncode == 0
    dprecipe.verify(out / "release")


def test_what_follows_an_error_is_dropped() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    out = Output(Full())
    assert out.write("one") == 3
    out.write("two")
    out.flush()
    assert out.error == "No space left on device"
    assert not out.isatty()
