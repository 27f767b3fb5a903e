"""The command line: exit codes, and what a fault looks like."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import typer

from dprecipe import __main__ as entry
from dprecipe import libraries
from dprecipe.cli import main as cli
from dprecipe.cli.guard import guard_faults
from dprecipe.faults import BudgetSpent, Finding, Place, PlanRefused

GOLDEN = Path(__file__).parents[1] / "golden" / "recipes"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["dprecipe", *arguments])
    with pytest.raises(SystemExit) as done:
        cli.main()
    return int(done.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        (("--version",), 0),
        (("validate", "--help"), 0),
        (("validate", str(GOLDEN / "fine.yaml")), 0),
        (("validate", str(GOLDEN / "all-at-once.yaml")), 1),
        (("validate", "nowhere.yaml"), 1),
        (("validate", str(GOLDEN / "fine.yaml"), "--format", "xml"), 2),
        (("validate",), 2),
        (("validate", "--wrong"), 2),
        (("nonsense",), 2),
        (("show", str(GOLDEN / "all-at-once.yaml")), 1),
        (("show", str(GOLDEN / "fine.yaml"), "--set", "budgt.epsilon=1"), 1),
        (("init", "nowhere/at/all.yaml"), 2),
    ],
)
def test_exit_codes(
    arguments: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *arguments) == code
    out = capsys.readouterr()
    assert "Traceback" not in out.out + out.err


@pytest.mark.parametrize(
    ("command", "is_short"), [("validate", True), ("--version", True), ("run", False), ("x", False)]
)
def test_a_short_command_leaves_garbage_alone_and_every_one_at_its_end(
    command: str, is_short: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(gc, "set_threshold", asked.append)
    monkeypatch.setattr(gc, "freeze", lambda: asked.append(0))
    monkeypatch.setattr("sys.argv", ["dprecipe", command])
    monkeypatch.setattr(libraries, "_is_own_process", False)
    with pytest.raises(SystemExit):
        entry.main()
    assert libraries._is_own_process
    assert asked == ([entry.MANY, 0] if is_short else [0])


def ended(error: BaseException) -> int:
    @guard_faults
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as done:
        command()
    return done.value.exit_code


def test_faults_become_a_message_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(BudgetSpent("the budget is spent", "start another run")) == 3
    assert capsys.readouterr().err == "error: the budget is spent\n  = start another run\n"


def test_a_refused_plan_shows_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(GOLDEN / "fine.yaml")
    assert (
        ended(
            PlanRefused([Finding("P101", "spends too much", "train less", "training.epochs", Place(file, 15, 11, 2))])
        )
        == 3
    )
    err = capsys.readouterr().err
    assert f"{file}:15:11: error[P101] training.epochs: spends too much" in err
    assert "15 |   epochs: 20" in err


def test_ctrl_c_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_fault_of_ours_is_one_line_unless_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended(ZeroDivisionError("oh")) == 4
    told = capsys.readouterr().err
    assert told.startswith("internal error: ZeroDivisionError; a terminal, or --debug, shows what it says")
    assert "oh" not in told  # it may be a value of a record, and this is no terminal
    with monkeypatch.context() as patch:
        patch.setattr("dprecipe.screen.is_watched", lambda: True)
        assert ended(ZeroDivisionError("oh")) == 4
    assert capsys.readouterr().err == "internal error: ZeroDivisionError: oh; run with --debug to see where\n"
    monkeypatch.setattr("sys.argv", ["dprecipe", "--debug"])
    assert ended(ZeroDivisionError("oh")) == 4
    assert "Traceback" in capsys.readouterr().err


def test_a_panic_of_a_library_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Libraries in Rust raise those outside of `Exception`; their text may quote a record."""
    panic = type("PanicException", (BaseException,), {})
    assert ended(panic("oh")) == 4
    said = capsys.readouterr().err
    assert said.startswith("internal error: PanicException; a terminal")
    assert "oh" not in said.removeprefix("internal error: PanicException; ")
    with pytest.raises(SystemExit):
        ended(SystemExit(7))


def test_debug_may_stand_anywhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "show", str(GOLDEN / "y105-tab.yaml"), "--debug") == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "error[Y105]" in err
