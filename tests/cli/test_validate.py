"""`dprecipe validate`: folders, formats, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dprecipe.cli import render
from dprecipe.cli.main import app
from dprecipe.cli.schema import SCHEMAS
from dprecipe.cli.validate import find_siblings, validate
from dprecipe.faults import Finding, Place, Severity, UsageFault
from dprecipe.planning import rules
from dprecipe.recipe.read import read
from dprecipe.recipe.root import Recipe
from dprecipe.recipe.starters import make_starter
from tests.schemas import validator_of
from tests.text.reading import show

GOLDEN = Path(__file__).parents[1] / "golden" / "recipes"
ALL_AT_ONCE = GOLDEN / "all-at-once.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "good.yaml").write_text(make_starter("dpsgd", "digits", "good"))
    (tmp_path / "sub" / "bad.yaml").write_text(ALL_AT_ONCE.read_text())
    (tmp_path / ".hidden" / "no.yaml").write_text("a: 1")
    (tmp_path / "sub" / "other.yml").write_text("recipe: dprecipe/v2")
    (tmp_path / "notes.txt").write_text("a: 1")
    return tmp_path


def test_folders_are_searched_and_recipes_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate([folder, folder / "good.yaml"], "json") == 1
    document = json.loads(capsys.readouterr().out)
    validator_of(SCHEMAS["findings.schema.json"]).validate(document)
    assert document["schema"] == "dprecipe.findings/v1"
    assert document["recipes"] == 3
    of = [finding["file"] for finding in document["findings"]]
    assert of.count(str(folder / "sub" / "bad.yaml")) == 4
    assert set(of) == {str(folder / "sub" / "bad.yaml"), str(folder / "sub" / "other.yml")}


def break_check(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A bug of ours: the rules end with an error for the recipe of this file."""
    real = rules.check

    def check(recipe: Recipe, *rest: Any) -> Any:
        if recipe.name == name:
            raise ModuleNotFoundError("No module named 'hunter2'")
        return real(recipe, *rest)

    monkeypatch.setattr(rules, "check", check)


@pytest.mark.parametrize("output", ["text", "json", "github", "sarif"])
def test_an_internal_error_of_one_recipe_is_its_finding_and_hides_no_other(
    folder: Path, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_check(monkeypatch, "good")
    assert validate([folder], output) == 1
    said = capsys.readouterr().out
    assert said.count("can't be checked: internal error (ModuleNotFoundError)") == 1
    assert "validate --debug" in said
    assert "R112" in said, "what the other recipes have"
    assert "hunter2" not in said
    if output == "sarif":
        (result,) = [each for each in json.loads(said)["runs"][0]["results"] if each["ruleId"] == "R199"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == str(folder / "good.yaml")
        assert place["region"]["startLine"] == 1
    if output == "github":
        assert f"::error file={folder / 'good.yaml'},line=1,col=1,title=R199::" in said


def test_an_internal_error_of_the_comparison_of_recipes_hides_no_finding(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> Any:
        raise KeyError("a")

    monkeypatch.setattr("dprecipe.cli.validate.find_siblings", fail)
    assert validate([folder], "github") == 1
    said = capsys.readouterr().out
    assert "internal error (KeyError)" in said
    assert "R112" in said


def test_debug_shows_where_an_internal_error_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_check(monkeypatch, "good")
    monkeypatch.setattr(sys, "argv", ["dprecipe", "validate", "--debug"])
    validate([folder])
    assert "No module named 'hunter2'" in capsys.readouterr().err


def test_the_line_of_a_password_is_shown_by_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "ward.yaml"
    text = make_starter("dpsgd", "digits", "ward")
    budget = text[text.index("\nbudget:") : text.index("\n", text.index("\nbudget:") + 1)]
    for address in (
        "postgresql://ann:hunter2@db/privacy",
        "https://ann:hunter2@[db",
        "postgresql:///?sslPassword=hunter2",
        "hunter2.db",
    ):
        block = f"\nbudget: {{epsilon: 1e-9, delta: 1.0e-6, acount: 1, account: '{address}'}}"
        recipe.write_text(text.replace(budget, block))
        validate([recipe])
        shown = capsys.readouterr().out
        assert "budget.acount" in shown
        assert ("hunter2" in shown) == address.endswith(".db")


def test_folders_of_runs_are_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run").mkdir()
    for name in ("recipe.yaml", "resolved.yaml"):
        (folder / "run" / name).write_text("extends: gone.yaml\n", encoding="utf-8")
    validate([folder], "json")
    assert str(folder / "run") in capsys.readouterr().out  # no run yet: nothing says that it is one
    (folder / "run" / "plan.json").touch()
    validate([folder], "json")
    assert str(folder / "run") not in capsys.readouterr().out
    assert validate([folder / "run"], "json") == 1  # asked for by name


def test_a_good_recipe_is_exit_code_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate([folder / "good.yaml"]) == 0
    assert capsys.readouterr().out == "1 recipe: no findings\n"


def test_warnings_are_shown_and_exit_code_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shows R120; nothing is read, so an empty file will do."""
    recipe = folder / "idx.yaml"
    recipe.write_text(make_starter("dpsgd", "idx", "idx"))
    (folder / "train-images-idx3-ubyte.gz").touch()
    assert validate([recipe], "json", folder) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [(f["code"], f["severity"], f["path"]) for f in findings if f["code"] == "R120"] == [
        ("R120", "warning", "data.train.labels"),
        ("R120", "warning", "data.test.images"),
        ("R120", "warning", "data.test.labels"),
    ]


def test_public_images_are_looked_for_and_labels_are_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = folder / "public.yaml"
    public = "  public: {source: idx, images: nowhere, labels: nobody-reads-them}\n  test:"
    recipe.write_text(make_starter("dpsgd", "idx", "idx").replace("  test:", public, 1))
    validate([recipe], "json", folder)
    findings = json.loads(capsys.readouterr().out)["findings"]
    paths = {f["path"] for f in findings if f["code"] == "R120"}
    assert {path for path in paths if path.startswith("data.public")} == {"data.public.images"}


def test_text_is_the_golden_text_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate([ALL_AT_ONCE]) == 1
    golden = ALL_AT_ONCE.with_suffix(".out").read_text("utf-8")
    out = capsys.readouterr().out.replace(f"{GOLDEN}/", "")
    assert out == golden + "1 recipe: 4 errors\n"


def test_an_empty_folder_and_an_unknown_format_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"no \*\.yaml"):
        validate([tmp_path])
    with pytest.raises(UsageFault, match="xml"):
        validate([ALL_AT_ONCE], "xml")


def test_a_missing_file_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate([tmp_path / "no.yaml"]) == 1
    assert "error[Y101]: there is no such file" in capsys.readouterr().out


FINDINGS = (
    Finding("P103", "δ is large", "lower it", "budget.delta", Place("a,b:c%.yaml", 3, 4, 5), Severity.WARNING),
    Finding("R101", "100% wrong\r\n::set-output name=x::y", "do", "x", Place("r.yaml", 1, 2, 3)),
)


def test_github_annotations_are_escaped_and_errors_come_first() -> None:
    first, second, last = render.as_github(FINDINGS, 2).splitlines()
    assert first == ("::error file=r.yaml,line=1,col=2,title=R101 x::100%25 wrong%0D%0A::set-output name=x::y%0Ado")
    assert second == ("::warning file=a%2Cb%3Ac%25.yaml,line=3,col=4,title=P103 budget.delta::δ is large%0Alower it")
    assert last == "2 recipes: 1 error, 1 warning"


def test_sarif_has_rules_places_and_uris() -> None:
    (run,) = json.loads(render.as_sarif(FINDINGS))["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["P103", "R101"]
    for result, finding in zip(run["results"], FINDINGS, strict=True):
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == finding.code
        assert result["level"] in ("error", "warning")
        assert finding.message in result["message"]["text"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "a%2Cb%3Ac%25.yaml"
    assert location["region"] == {"startLine": 3, "startColumn": 4, "endColumn": 9}
    assert json.loads(render.as_sarif(()))["runs"][0]["results"] == []


def test_the_caret_stands_under_tabs_and_long_lines() -> None:
    text = "\ta: 1\n" + "x" * 300 + "yz"
    tab = show([Finding("Y105", "m", "", place=Place("f", 1, 2))], {"f": text}).splitlines()
    assert tab[1:] == ["  1 | \ta: 1", "    | \t^"]
    far = show([Finding("Y104", "m", "", place=Place("f", 2, 302, 1))], {"f": text}).splitlines()
    assert far[1].index("z") == far[2].index("^")
    assert len(far[1]) < 140


def test_nothing_printed_steers_a_terminal() -> None:
    finding = Finding("R101", "a\x1b[31m", "b\u202e", "p", Place("f\x07", 1, 1))
    assert show([finding], {}) == "f\\u0007:1:1: error[R101] p: a\\u001b[31m\n  = b\\u202e\n"


def test_nothing_that_validate_imports_is_heavy() -> None:
    """In a process of its own: no torch, lightning, scipy, and none of the machinery of wrong recipes."""
    script = (
        "import sys\n"
        "for name in ('torch', 'lightning', 'scipy', 'dp_accounting', 'matplotlib', 'pyarrow', 'cryptography'):\n"
        "    sys.modules[name] = None\n"
        "from dprecipe.cli.main import main\n"
        f"sys.argv = ['dprecipe', 'validate', {str(GOLDEN / 'fine.yaml')!r}]\n"
        "try: main()\n"
        "except SystemExit as done: code = done.code\n"
        "assert not code, code\n"
        "assert 'dprecipe.recipe.wording' not in sys.modules and 'rich' not in sys.modules\n"
        "assert 'dprecipe.release.facts' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_overrides_are_checked_as_in_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(make_starter("dpsgd", "digits", "good"))
    run = CliRunner().invoke(app, ["validate", str(recipe), "--set", "budget.epsilon=-1"])
    assert run.exit_code == 1
    assert "--set #1:1:" in run.output
    assert "budget.epsilon" in run.output
    assert CliRunner().invoke(app, ["validate", str(recipe), "--set", "budget.epsilon=1.5"]).exit_code == 0


RECIPES = Path(__file__).parents[2] / "recipes"


def paths_of(*overrides: str) -> list[str]:
    base = RECIPES / "quickstart.yaml"
    return [finding.path for finding in find_siblings([read(base), *(read(base, (each,)) for each in overrides)])]


def test_other_values_of_the_same_keys_are_told() -> None:
    assert paths_of("training.optimizer.lr=1.0") == ["training.optimizer.lr"]
    assert paths_of("training.steps=80", "mechanism.clip.norm=0.4") == ["training.steps", "mechanism.clip.norm"]


def test_other_data_budgets_models_and_the_same_recipe_again_are_not() -> None:
    assert paths_of("name=other", "runtime.device=cpu", "release.report=false") == []
    assert paths_of("budget.epsilon=2.0", "data.size=1437", "model={kind: logistic_regression}") == []
    assert paths_of("model.hidden=[48, 48]", "training.average=null") == []


def test_a_recipe_with_tuning_has_said_what_it_tries() -> None:
    both = [read(RECIPES / "quickstart.yaml"), read(RECIPES / "tuned-digits.yaml")]
    assert list(find_siblings(both)) == []


def test_validate_warns_of_the_files_that_it_is_given(tmp_path: Path, capsys: object) -> None:
    text = (RECIPES / "quickstart.yaml").read_text("utf-8")
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    (tmp_path / "b.yaml").write_text(text.replace("lr: 2.2", "lr: 1.1"), "utf-8")
    assert validate([tmp_path]) == 0
    out = capsys.readouterr().out  # type: ignore[attr-defined]
    assert "warning[P188] training.optimizer.lr" in out
    assert "a.yaml" in out
