"""What reaches a terminal: nothing of a stranger's that steers it, turns it or passes for a line of ours."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dprecipe import screen
from dprecipe.cli.main import app
from dprecipe.recipe.starters import make_starter
from dprecipe.text.dump import dump_inline

PACKAGE = Path(__file__).parents[1] / "dprecipe"
FORGED = "  ε spent       0.01 of 0.01 at δ = 1e-09"
COLUMN = f"id\n{FORGED}\n\u202egnorw\u2069\u2028\U000e0041"
RAW = ("\x1b", "\x9b", "\u202e", "\u2069", "\u2028", "\U000e0041")
WRITERS = {
    "screen.py",
    "mechanisms/pate/train/pool.py",  # a process that answers its parent through a pipe
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe whose column of units holds a forged line of the claim."""
    text = make_starter("dpsgd", "csv", "forged")
    unit = f"  unit: {{column: {dump_inline(COLUMN)}, max_records: 2}}\n"
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("  unit:")]
    at = next(index for index, line in enumerate(lines) if line.startswith("  size:"))
    path = tmp_path / "forged.yaml"
    path.write_text("".join([*lines[: at + 1], unit, *lines[at + 1 :]]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "{}"),
        ("plan", "{}", "--format", "json"),
        ("show", "{}"),
        ("show", "{}", "--origin"),
        ("noise", "{}"),
        ("validate", "{}"),
        *(("validate", "{}", "--format", name) for name in ("json", "github", "sarif")),
        ("plan", "{}", "--set", "budget.epsilon=0.0001"),
        ("run", "{}", "--data-root", "/nowhere"),
    ],
    ids=" ".join,
)
def test_no_command_prints_a_strangers_line(arguments: tuple[str, ...], recipe: Path) -> None:
    result = CliRunner().invoke(app, [argument.format(recipe) for argument in arguments])
    assert "internal error" not in result.output
    for text in (result.stdout, result.stderr):
        assert not [line for line in text.split("\n") if line.strip().startswith("ε spent")]
        assert not [character for character in RAW if character in text]
    assert result.output


def test_a_plan_refuses_such_a_column(recipe: Path) -> None:
    told = CliRunner().invoke(app, ["plan", str(recipe)])
    assert told.exit_code == 3
    assert "R308" in told.output


def test_a_fault_marks_what_follows_a_line_break(capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    from dprecipe.cli.guard import guard_faults
    from dprecipe.faults import CertificateInvalid, DataFault

    @guard_faults
    def command() -> None:
        raise DataFault("no column a\nverified\n\x1b[2J", "look again")

    with pytest.raises(typer.Exit):
        command()
    assert capsys.readouterr().err == "error: no column a\n  | verified\n  | \\u001b[2J\n  = look again\n"

    @guard_faults
    def verify() -> None:
        raise CertificateInvalid(["claim.delta: it is 1", "no file list"])

    with pytest.raises(typer.Exit):
        verify()
    assert capsys.readouterr().err.endswith("verify:\n- claim.delta: it is 1\n- no file list\n")


@pytest.mark.slow
def test_only_the_screen_writes_to_the_standard_streams() -> None:
    """The escape stands in one place: no other module of the package can go around it."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_stream = isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr")
            if is_stream and isinstance(node.value, ast.Name) and node.value.id == "sys":  # type: ignore[attr-defined]
                found.add(path.relative_to(PACKAGE).as_posix())
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                found.add(path.relative_to(PACKAGE).as_posix())
    assert "screen.py" in found
    assert found - WRITERS == {
        "cli/guard.py",
        "cli/main.py",
    }  # which ask or set what they are, and write nothing
    assert ".write(" not in (PACKAGE / "cli" / "main.py").read_text("utf-8")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_is_for_terminals_that_want_it(
    variables: dict[str, str], is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    screen.write_output(["a.yaml:1:2: error[R101] x: unknown key"])
    monkeypatch.setattr(sys, "stdout", pipe)
    screen.write_output(["a.yaml:1:2: error[R101] x: unknown key"])
    assert ("\x1b[1;31merror[R101]\x1b[0m" in terminal.getvalue()) is is_coloured
    assert pipe.getvalue() == "a.yaml:1:2: error[R101] x: unknown key\n"


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("error: it is absent", "error"),
        ("internal error: KeyError: 1", "internal error"),
        ("refused", "refused"),
        ("a b.yaml:3:4: warning[P112] data.test: x", "warning[P112]"),
        ("  warning P112: x", "warning P112"),
        ("  3 | text", ""),
        ("    | ^^^", "^^^"),
        ("  = write `x`", "= write `x`"),
        ("verified", "verified"),
        ("verified as never before", ""),
        ("completed: spent ε = 1", "completed"),
        ("  spends      ε = 1 of 2 at δ = 1e-05", "spends      ε = 1 of 2 at δ = 1e-05"),
        ("  ε spent       1 of 2 at δ = 1e-05", "ε spent       1 of 2 at δ = 1e-05"),
        ("plain", ""),
    ],
)
def test_what_is_coloured(line: str, part: str) -> None:
    shown = screen.colour_line(line)
    assert screen._RESET not in shown if not part else shown.count(screen._RESET) == 1
    start, _, rest = shown.partition("\x1b[")
    assert part == (rest.partition("m")[2].partition(screen._RESET)[0] if rest else "")
    assert start + part + shown.partition(screen._RESET)[2] == (line if part else line + part)


def test_json_keeps_every_value() -> None:
    content = {"a": [COLUMN, "\x00\x7f", "\ud7ff\ue000", 1.5, None]}
    text = screen.as_json(content)
    assert json.loads(text) == content
    assert all(character.isprintable() or character == "\n" for character in text)


FIRST_WORDS = """
import sys
class Spy:
    def __init__(self, stream): self.stream, self.first = stream, None
    def write(self, text):
        if self.first is None and text.strip():
            self.first = (text, sorted(set(sys.modules) & set(HEAVY)))
            sys.__stdout__.write(repr(self.first) + "\\n")
            sys.__stdout__.flush()
        return len(text)
    def __getattr__(self, name): return getattr(self.stream, name)
HEAVY = ("dprecipe.recipe.root", "dprecipe.planning", "numpy", "scipy", "torch", "lightning", "yaml", "dp_accounting")
sys.stderr = Spy(sys.stderr)
sys.argv = ["dprecipe", "run", "nowhere.yaml"]
from dprecipe.cli.main import main
main()
"""


def test_the_first_words_of_a_run_come_before_anything_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_WORDS], capture_output=True, text=True, check=False, env={**os.environ}
    )
    text, heavy = first = ast.literal_eval(done.stdout.splitlines()[0])
    assert "running nowhere.yaml" in text, first
    assert heavy == []


def test_only_the_leading_process_says_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def call() -> Any:
        return CliRunner().invoke(app, ["run", "nowhere.yaml"]).stderr

    assert "running" in call()
    monkeypatch.setenv("RANK", "1")
    assert "running" not in call()
