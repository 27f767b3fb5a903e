"""The README: its demo and its walk from a CSV to a prediction print what it shows."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shlex
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.testing import CliRunner

from dprecipe.cli.main import app
from tests.docs.test_first_days import FENCE, ROOT, read_section

VISITS = Path("examples/visits/visits.csv")
VARYING = re.compile(r"accuracy [\d.]+%|in \d+ s\b|(?<=more in )\S+(?=/private)")


def load_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("visits_make", ROOT / "examples" / "visits" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(command: str) -> str:
    """Runs a command of ours, which has to succeed; returns what it printed."""
    program, *arguments = shlex.split(command)
    assert program == "dprecipe"
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (command, done.output)
    return done.output


def assert_printed(shown: str, printed: str) -> None:
    """Each shown line was printed, in this order; without a `…` between them, the lines follow each other."""
    lines = [VARYING.sub("", line) for line in printed.splitlines()]
    place, skips = 0, False
    for line in shown.splitlines():
        if line == "…":
            skips = True
            continue
        wanted = VARYING.sub("", line)
        assert wanted in lines[place:], (line, printed)
        found = lines.index(wanted, place)
        assert skips or found == place, (line, printed)
        place, skips = found + 1, False


def test_the_visits_are_those_of_the_script(tmp_path: Path) -> None:
    make = load_maker()
    make.write(tmp_path / "visits.csv")
    assert (tmp_path / "visits.csv").read_bytes() == (ROOT / VISITS).read_bytes()
    (said,) = re.findall(r"has ([\d,]+) synthetic hospital visits of (\d+) patients", read_section_of_walk())
    rows = read_visits()
    assert said == (f"{len(rows):,}", str(len({row["patient_id"] for row in rows})))


def read_visits() -> list[dict[str, str]]:
    with (ROOT / VISITS).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_section_of_walk() -> str:
    return read_section("README.md", "From a CSV to a verified release")


@pytest.mark.slow
def test_the_demo_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (commands,) = re.findall(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    commands = (
        commands.replace("$(OUT)", str(tmp_path / "demo")).replace("$(BIN)/", "").replace("OMP_NUM_THREADS=1 ", "")
    )
    printed = [line for command in commands.splitlines() for line in call(command.strip()).splitlines()]
    (shown,) = (text for language, text in FENCE.findall(read_section("README.md", "Try it")) if language == "text")
    assert_printed(f"…\n{shown}", "\n".join(printed))


@pytest.mark.slow
def test_the_walk_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command is typed again beside the file of the repository, and the model is better than a constant."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    VISITS.parent.mkdir(parents=True)
    shutil.copy(ROOT / VISITS, VISITS)
    typed = []
    for language, block in FENCE.findall(read_section_of_walk()):
        if language == "yaml":
            assert_drafted(block, Path("visits.yaml"))
        if language != "console":
            continue
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            if command.startswith("head "):
                assert_printed(shown, VISITS.read_text("utf-8"))
                continue
            typed.append(command.split()[1])
            assert_printed(shown, call(command))
    assert typed == ["init", "validate", "data", "run", "verify", "predict"]
    assert len(Path("runs/predictions.csv").read_text("utf-8").splitlines()) == len(read_visits()) + 1
    scores = json.loads(Path("runs/visits/private/metrics.json").read_text("utf-8"))
    assert scores["accuracy"] > scores["accuracy_baseline"]
    assert scores["auc"] > 0.8
    assert f"gives {scores['accuracy_baseline']:.0%}".replace("%", " %") in read_section_of_walk().replace("\n", " ")


def assert_drafted(shown: str, draft: Path) -> None:
    """The recipe is the draft, and resolves to the same with every default."""
    written = yaml.safe_load(draft.read_text(encoding="utf-8"))
    assert yaml.safe_load(shown).items() <= written.items()
    Path("shown.yaml").write_text(shown, encoding="utf-8")
    assert call("dprecipe show shown.yaml") == call(f"dprecipe show {draft}")


def test_lines_that_were_not_printed_are_found() -> None:
    assert_printed("a\n…\nc accuracy 90%\n", "a\nb\nc accuracy 80%\n")
    for shown in ("a\nc\n", "c\na\n", "d\n"):
        with pytest.raises(AssertionError):
            assert_printed(shown, "a\nb\nc\n")
