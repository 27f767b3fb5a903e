"""The table of a recipe's blanks: one block of lines for each file; other formats keep each finding."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dprecipe.cli.blanks import describe_blanks, split_blanks
from dprecipe.cli.main import app
from dprecipe.cli.validate import check
from dprecipe.recipe.starters import make_starter

TEXT = (
    make_starter("dpsgd", "csv", "s")
    .replace("{kind: numeric, min: 0, max: 120}", "{kind: integer, min: FILL_IN, max: FILL_IN}")
    .replace("values: [red, green, blue]}", "values: FILL_IN}\n      a.b: {kind: boolean}\n      note: {kind: text}")
    .replace('values: ["no", "yes"]', "values: FILL_IN")
    .replace("size: 10000", "size: FILL_IN")
    .replace("- one_hot: {}", "- one_hot: {}\n    - hash: {columns: [note], buckets: 64, tokens: words}")
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_blanks_are_one_table(path: Path) -> None:
    code, printed, _ = run("validate", str(path))
    assert code == 1
    rows = [" ".join(line.split()[1:]) for line in printed.splitlines()[2:7]]
    assert rows == [
        "age integer min, max a whole number missing, marks, decimal, affixes",
        "colour category values a list of text, as [a, b]",
        "a.b boolean missing, marks, values",
        "outcome label values a list of text, as [a, b]",
        "data size a whole number or a block with `max`",
    ]
    assert "5 values are left open" in printed.splitlines()[0]
    assert "= missing: what an empty field or NA counts as" in printed
    assert "note" not in printed
    assert "  = a number that is not known: size: {max: NUMBER}, never exceeded, and as the first step" in printed
    assert len(printed.splitlines()) <= 15


def test_what_a_size_that_is_not_known_says_is_a_recipe(path: Path) -> None:
    """The lines that the first message names, as it names them."""
    text = TEXT.replace("min: FILL_IN, max: FILL_IN", "min: 0, max: 9").replace("values: FILL_IN", "values: [a, b]")
    for known in ("FILL_IN", "unknown", ""):
        path.write_text(text.replace("size: FILL_IN", f"size: {known}"), encoding="utf-8")
        told = run("validate", str(path))[1]
        assert "1 recipe: 1 error" in told
        size, step = re.findall(r"(size: {max: )NUMBER}, never .* preprocess: (- dp_count: {share: 0.02})", told)[0]
    bounded = text.replace("size: FILL_IN", f"{size}10000}}").replace("preprocess:", f"preprocess:\n    {step}")
    path.write_text(bounded.replace("  test: *TEST", ""), encoding="utf-8")
    assert "no findings" in run("validate", str(path))[1]
    assert run("plan", str(path))[0] == 0


@pytest.mark.parametrize("command", ["plan", "run"])
def test_plan_and_run_show_the_same_table(command: str, path: Path) -> None:
    table = run("validate", str(path))[1].splitlines()[:-1]
    code, _, noted = run(command, str(path))
    assert code == 1
    assert [line for line in noted.splitlines() if not line.startswith("dprecipe ")] == table


def test_other_formats_keep_each_finding(path: Path) -> None:
    for form, count in (
        ("json", lambda text: len(json.loads(text)["findings"])),
        ("github", lambda text: text.count("::error")),
    ):
        code, printed, _ = run("validate", "--format", form, str(path))
        assert (code, count(printed)) == (1, 5)


def test_one_blank_is_a_finding_with_its_line(path: Path) -> None:
    path.write_text(make_starter("dpsgd", "csv", "s").replace("size: 10000", "size: FILL_IN"), encoding="utf-8")
    printed = run("validate", str(path))[1]
    assert "error[R103] data.size: left open: expected a whole number" in printed
    assert "^^^^^^^" in printed


def test_other_findings_stay_beside_the_table(path: Path) -> None:
    path.write_text(TEXT.replace("norm: 1.0", "nrm: 1.0"), encoding="utf-8")
    printed = run("validate", str(path))[1]
    assert "5 values are left open" in printed
    assert "nrm" in printed


def test_blanks_of_overrides_and_of_lost_texts_are_shown(path: Path) -> None:
    printed = run("validate", str(path), "--set", "budget.epsilon=FILL_IN", "--set", "name=FILL_IN")[1]
    assert "data.size" not in printed
    assert "error[R103] budget.epsilon: left open" in printed
    blanks = split_blanks(check(path)[0])[str(path)]
    rows = [line.split() for line in describe_blanks(blanks, "")[2:]]
    assert rows[0][1:4] == ["age", "min,", "max"]
