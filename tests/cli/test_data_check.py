"""`dprecipe data check`, as its user runs it: all faults at once, and counts for their owner alone."""

from __future__ import annotations

import os
import random
import re
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dprecipe.cli import data_check as module
from dprecipe.cli.data_check import draw_bars
from dprecipe.cli.main import app

RECIPE = """\
recipe: dprecipe/v1
name: hospital
data:
  train:
    source: csv
    path: hosp.csv
    delimiter: ";"
    columns:
      age: {kind: numeric, min: 0, max: 90}
      lactate: {kind: numeric, min: 0, max: 10, missing: 1.0, marks: ['<0.5']}
      ward: {kind: category, values: [surgery, icu]}
      admitted: {kind: date, min: 2020-01-01, max: 2023-12-31, format: '%d.%m.%Y', parts: [time, weekday]}
      emergency: {kind: boolean, values: [nein, ja]}
      severity: {kind: ordinal, values: [mild, moderate, severe]}
      children: {kind: integer, min: 0, max: 6}
    label: {column: outcome, values: [home, died]}
  test: {split: {share: 0.25}}
  size: 80
  unit: {column: patient, max_records: 3}
  preprocess: [{one_hot: {}}]
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 4.0}
  sampling: {scheme: poisson, batch_size: 20}
budget: {epsilon: auto, delta: 1e-4}
training: {steps: 3, optimizer: {kind: sgd, lr: 0.5}}
"""
HEADER = "patient;age;lactate;ward;admitted;emergency;severity;children;outcome"


def make_rows(severity: str = "severe") -> list[str]:
    draw = random.Random(1)
    return [
        f"p{patient};{draw.randint(0, 100)};{draw.choice(['1.5', 'NA', '<0.5'])};{draw.choice(['surgery', 'Surgery'])};"
        f"{draw.randint(1, 28):02d}.{draw.randint(1, 12):02d}.2022;{draw.choice(['ja', 'nein'])};"
        f"{draw.choice(['mild', 'moderate', severity])};{draw.randint(0, 6)};{draw.choice(['home', 'home', 'died'])}"
        for patient in range(80)
        for _ in range(draw.randint(1, 4))
    ]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "hosp.csv").write_text("\n".join([HEADER, *make_rows()]) + "\n")
    return tmp_path / "recipe.yaml"


def check(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", "check", *map(str, arguments)])


def test_counts_are_for_who_asks_for_them(recipe: Path) -> None:
    quiet, loud = check(recipe), check(recipe, "--print-private")
    assert (quiet.exit_code, loud.exit_code) == (0, 0)
    assert quiet.stdout.splitlines() == [
        "every source is what the recipe declares",
        "data.train: read",
        "data.test: read",
        "numbers of records, gaps and clamped values are left out, as others may read this output: see them in a "
        "terminal, or by --report FILE or --print-private",
    ]
    sides = re.findall(r"^data\.\w+: (\d+) records(?: of (\d+) units)?$", loud.stdout, re.MULTILINE)
    (train, units), (test, _) = sides
    rows = [line.split(";")[0] for line in make_rows()]
    assert int(train) + int(test) == sum(min(3, rows.count(name)) for name in set(rows))
    assert 0 < int(units) < 80
    for text in ("records of a unit: 1: ", "label: home: ", "age (numeric): ", "missing", "ward (category): ", "other"):
        assert text in loud.stdout


def test_a_terminal_gets_the_counts(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_output_watched", lambda: True)
    assert "label: home: " in check(recipe).stdout


def test_all_faults_at_once_and_their_places_in_private(recipe: Path) -> None:
    lines = [HEADER, *make_rows("grave")]
    lines[5] = lines[5].replace(";home", ";unknown").replace(";died", ";unknown")
    (recipe.parent / "hosp.csv").write_text("\n".join(lines) + "\n")
    quiet, loud = check(recipe), check(recipe, "--print-private")
    assert (quiet.exit_code, loud.exit_code) == (1, 1)
    for problem in ("'severity': a field is not among the 3", "'outcome': a label is not among the 2"):
        assert problem in quiet.stdout
        assert problem in loud.stdout
    assert re.search(r"'outcome'.*\n  = .*\n  private: line 6$", loud.stdout, re.MULTILINE)
    assert "line" not in quiet.stdout
    assert "grave" not in loud.stdout
    assert "unknown" not in loud.stdout


def test_both_sides_of_a_split_tell_the_same_faults_in_one_list(recipe: Path) -> None:
    """They meet them in another order: the first row of one side has a wrong label, that of the other a wrong grade."""
    rows = make_rows()
    rows = [row.replace(";home", ";unknown").replace(";died", ";unknown") if number % 2 else row for number, row in
            enumerate(rows)]  # fmt: skip
    wrong = [row.replace(";mild;", ";grave;") for row in rows]
    (recipe.parent / "hosp.csv").write_text("\n".join([HEADER, *wrong]) + "\n")
    told = check(recipe).stdout.splitlines()
    assert len(told) == len(set(told)) == 4


def test_a_misspelt_column_is_told_with_its_nearest_name(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("      lactate:", "      lactat:"))
    result = check(recipe)
    assert result.exit_code == 1
    assert "column 'lactat' (the file has 'lactate') is not in the header line" in result.stdout
    assert result.stdout.count("error:") == 1  # told by both sides of the split, and shown once


def test_an_error_of_the_recipe_comes_first(recipe: Path) -> None:
    (recipe.parent / "hosp.csv").unlink()
    result = check(recipe, "--set", "data.test.split.by=outcome")
    assert result.exit_code == 1
    assert "error[R230] data.test.split.by" in result.stderr
    assert "hosp.csv" not in result.output.replace("path: hosp.csv", "")
    missing = check(recipe)
    assert missing.exit_code == 1
    assert "hosp.csv: no such data file" in missing.stdout


def test_the_report_is_private_and_stands_alone(recipe: Path) -> None:
    page = recipe.parent / "data.html"
    assert check(recipe, "--report", page).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert stat.S_IMODE(os.stat(page).st_mode) == 0o600
    assert "Private: not for release" in text
    assert text.count("<svg") == 2 * 8 + 1  # label and seven columns of both sides, and the units
    assert "<script" not in text
    assert not re.search(r"(?:src|href)=", text)
    again = check(recipe, "--report", page)
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_no_report_is_written_into_a_release(recipe: Path) -> None:
    release = recipe.parent / "release"
    release.mkdir()
    result = check(recipe, "--report", release / "data.html")
    assert result.exit_code == 2
    assert list(release.iterdir()) == []


def test_what_takes_long_is_told(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.0)
    assert "reading data.train" in check(recipe).stderr


def test_bars_are_as_high_as_their_counts() -> None:
    drawing = draw_bars([("a<b", 10), ("c", 5), ("d", 0)], ("a<b", "d"))
    heights = [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', drawing)]
    assert heights[0] == pytest.approx(2 * heights[1])
    assert heights[2] == 0
    assert "<title>a&lt;b: 10</title>" in drawing


def test_names_and_kinds_are_checked_while_values_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    (tmp_path / "t.csv").write_text("age,word,y\n31,Zebra,a\n32,Gnu,b\n33,Gnu,a\n34,Emu,b\n")
    path, runner = tmp_path / "r.yaml", CliRunner()
    made = runner.invoke(app, ["init", str(path), "--from", str(tmp_path / "t.csv"), "--private", "--label", "y"])
    assert made.exit_code == 0, made.output
    fits = runner.invoke(app, ["data", "check", str(path), "--data-root", str(tmp_path)])
    assert fits.exit_code == 1
    assert fits.stdout.startswith("data.train: read names and kinds of its columns\nevery column is there, and of its")
    assert "values are left open" in fits.stdout
    path.write_text(path.read_text().replace("      age:", "      Age:"))
    differs = runner.invoke(app, ["data", "check", str(path), "--data-root", str(tmp_path)])
    assert "there is no column 'Age'\n  = write 'age'\n" in differs.stdout
    assert not {"Zebra", "31"} & set(differs.stdout.split())
    path.write_text(path.read_text().replace("norm: 1.0", "nrm: 1.0"))
    wrong = runner.invoke(app, ["data", "check", str(path), "--data-root", str(tmp_path)])
    assert (wrong.exit_code, wrong.stdout) == (1, "")


@pytest.mark.parametrize(("access", "stops"), [("public", True), ("private_internal", False)])
def test_public_test_records_without_a_label_score_nothing(
    access: str, stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stops where private ones have none: a single label would decide it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    Path("hosp.csv").write_text("\n".join([HEADER, *make_rows()]) + "\n", "utf-8")
    unlabelled = [row.rpartition(";")[0] + ";" for row in make_rows()[:5]]
    Path("later.csv").write_text("\n".join([HEADER, *unlabelled]) + "\n", "utf-8")
    test = f"test: {{path: later.csv, access: {access}}}"
    text = RECIPE.replace("test: {split: {share: 0.25}}", test).replace(
        "died]}\n  test", "died], missing: omit}\n  test"
    )
    Path("recipe.yaml").write_text(text, "utf-8")
    result = CliRunner().invoke(app, ["data", "check", "recipe.yaml"])
    assert result.exit_code == int(stops), result.output
    assert ("data.test has no record with a label" in result.output) == stops
