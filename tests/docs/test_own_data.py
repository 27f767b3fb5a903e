"""docs/tutorials/own-data.md shows what the commands print for a private file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dprecipe.cli import init as module
from dprecipe.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "own-data.md").read_text(encoding="utf-8")


def read_session(command: str) -> tuple[list[str], list[str]]:
    """Returns the arguments of a command of the page, and the lines it prints there."""
    sessions = (text.splitlines() for text in re.findall(r"```console\n\$ (.*?)```", PAGE, re.DOTALL))
    return next((lines[0].split()[1:], lines[1:]) for lines in sessions if lines[0].startswith(f"dprecipe {command}"))


def test_the_questions_and_the_table_are_those_of_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    Path("admissions.csv").write_text(
        "patient,age,ward,outcome\n" + "".join(f"P{n},{40 + n},{'AB'[n % 2]},{'yn'[n % 2]}\n" for n in range(8))
    )
    arguments, shown = read_session("init")
    answers = {}
    for line in shown:
        question, _, said = line.rpartition(":")
        answers[f"{question}: "] = said.strip()
    asked: list[str] = []

    def ask(question: str) -> str | None:
        asked.append(question)
        return answers.get(question, "home, transfer" if question.startswith("outcome: its values") else "")

    monkeypatch.setattr(module, "can_ask", lambda: True)
    monkeypatch.setattr(module, "ask_line", ask)
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert asked[: len(answers)] == list(answers)
    arguments, shown = read_session("data check")
    assert CliRunner().invoke(app, arguments).stdout.splitlines() == shown
