"""`dprecipe init`: starters that validate, and are never written over anything."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import pytest

from dprecipe.cli import main as cli
from dprecipe.cli.init import init, init_from, make_name
from dprecipe.cli.validate import check
from dprecipe.faults import UsageFault
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read, read_text
from dprecipe.recipe.starters import MECHANISMS, SOURCES, make_starter


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_starters_validate_without_a_finding(mechanism: str, source: str, tmp_path: Path) -> None:
    path = tmp_path / "my recipe.yaml"
    init(path, mechanism, source)
    findings, *_ = check(path)
    assert findings == ()
    assert path.read_text("utf-8").startswith("# yaml-language-server: $schema=")
    assert "name: my-recipe\n" in path.read_text("utf-8")


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_starters_are_planned_within_their_budget(mechanism: str, source: str) -> None:
    result = plan(read_text(make_starter(mechanism, source, "s")))
    assert 0.99 * result.budget.epsilon < result.guarantee.epsilon <= result.budget.epsilon
    assert result.warnings == ()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_budget_can_be_named(mechanism: str, tmp_path: Path) -> None:
    for epsilon in (0.07, 1e-5, 12.0):
        path = tmp_path / f"{epsilon}.yaml"
        init(path, mechanism, epsilon=epsilon)
        assert read(path).recipe.budget.epsilon == epsilon


def test_a_budget_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UsageFault, match="--epsilon"):
            init(path, epsilon=epsilon)
    with pytest.raises(UsageFault, match="--epsilon is about a new recipe"):
        init(path, like="quickstart", epsilon=1.0)
    (tmp_path / "votes.csv").write_text("a,b\n1,2\n3,0\n")
    with pytest.raises(UsageFault, match="a recipe for votes"):
        init_from(path, "pate", tmp_path / "votes.csv", False, True, epsilon=1.0)
    assert not path.exists()


def test_the_help_names_every_starter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["dprecipe", "init", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    printed = capsys.readouterr().out
    assert [word for word in (*MECHANISMS, *SOURCES) if word not in printed] == []


@pytest.mark.parametrize("name", ["r.yaml", "my recipe.yaml", "r.yml", "it's.yaml"])
@pytest.mark.parametrize("drafted", [False, True])
def test_the_commands_that_are_named_are_for_this_file(
    name: str, drafted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if drafted:
        Path("sample.csv").write_text("a,y\n1,0\n2,1\n")
        init_from(Path(name), "dpsgd", Path("sample.csv"), public=True, private=False, label="y")
    else:
        init(Path(name))
    printed = capsys.readouterr().out.rpartition("next: ")[2]
    comments = re.findall(r"^#   (dprecipe \w+ .+?)  ", Path(name).read_text("utf-8"), re.MULTILINE)
    assert [shlex.split(line)[2:] for line in (printed, *comments)] == [[name]] * 4


def test_a_name_of_two_lines_adds_no_line_to_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "a\nbudget: 1.yaml"
    init(path)
    findings, *_ = check(path)
    assert findings == ()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("mine")
    with pytest.raises(UsageFault, match="already exists"):
        init(path)
    assert path.read_text() == "mine"


def test_unknown_words_and_unwritable_places(tmp_path: Path) -> None:
    for mechanism, data in (("magic", "digits"), ("dpsgd", "tape")):
        with pytest.raises(UsageFault, match="there is no starter"):
            init(tmp_path / "r.yaml", mechanism, data)
    with pytest.raises(UsageFault, match="can't be written"):
        init(tmp_path / "no" / "r.yaml")


@pytest.mark.parametrize(("stem", "name"), [("a b", "a-b"), ("_x", "x"), ("é", "recipe"), ("x" * 200, "x" * 100)])
def test_names_come_from_the_file(stem: str, name: str) -> None:
    assert make_name(Path(f"{stem}.yaml")) == name


@pytest.mark.parametrize("stem", ["7", "1e3", "null", "yes", "0x10", "2026-01-01"])
def test_a_name_that_yaml_takes_for_something_else_is_quoted(stem: str, tmp_path: Path) -> None:
    recipe = tmp_path / f"{stem}.yaml"
    init(recipe)
    assert read(recipe).recipe.name == stem


@pytest.mark.parametrize(
    ("kind", "model"), [("range", "linear"), ("count", "linear"), ("several", "logistic_regression"), ("classes", None)]
)
def test_a_private_draft_can_be_told_what_its_label_is(kind: str, model: str | None, tmp_path: Path) -> None:
    (tmp_path / "claims.csv").write_text("age,amount\n" + "".join(f"{20 + i},{i * i}\n" for i in range(30)))
    recipe = tmp_path / "claims.yaml"
    init_from(recipe, "dpsgd", tmp_path / "claims.csv", False, True, "amount", label_kind=kind)
    text = recipe.read_text()
    assert f"label: {{column: amount, {kind}: FILL_IN}}" in text
    if model is not None:
        assert f"kind: {model}" in text
    findings, *_ = check(recipe)
    open_places = {finding.code for finding in findings}
    assert open_places == {"R103"}


def test_the_kind_of_a_label_is_one_of_those_and_of_a_private_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    for public, kind in ((True, "range"), (False, "number")):
        with pytest.raises(UsageFault, match="kind of the label"):
            init_from(tmp_path / "a.yaml", "dpsgd", tmp_path / "a.csv", public, not public, "y", label_kind=kind)
    assert not (tmp_path / "a.yaml").exists()
