"""The guards of pull requests: the GitHub Action's script, as it stands in `action.yml`, and the pre-commit hook."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dprecipe.cli.schema import SCHEMAS
from dprecipe.recipe.starters import make_starter
from tests.action_runner import ACTION, ROOT, Outcome, read_annotations, run_action
from tests.schemas import validator_of

HOOK = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))[0]
STUB = """\
#!/bin/sh
if [ "$3" = json ]; then echo '{"findings": []}'; else for each in "$@"; do printf "%s\\n" "$each"; done; fi
"""
POLICY = "policy: dprecipe/v1\nname: house\nrules:\n  - {name: strict, max_epsilon: 1.0}\n"


def make_programs(folder: Path, dprecipe: str) -> Path:
    """The folder of a runner, in which the action's environment has this program called `dprecipe`."""
    programs = folder / "runner" / "dprecipe" / "bin"
    programs.mkdir(parents=True)
    for name, text in (("dprecipe", dprecipe), ("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    return folder / "runner"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with recipes, and a `dprecipe` that prints its arguments."""
    make_programs(tmp_path, STUB)
    for name in ("recipes/a.yaml", "models/x/b.yaml", "models/x/y/c.yml", "with blank/d.yaml", "[odd].yaml", "-e.yaml"):
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkout" / name).touch()
    return tmp_path


def arguments(folder: Path, paths: str, **inputs: str) -> list[str]:
    done = run_action(folder / "checkout", folder / "runner", {"paths": paths, **inputs}, skipped=("Install",))
    assert (done.code, done.errors) == (0, "")
    return done.log.splitlines()


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ("recipes", ["recipes"]),
        ("", ["recipes"]),
        (" \n\t\n", ["recipes"]),
        ("  recipes  \n\n    models/x\n", ["recipes", "models/x"]),
        ("recipes\r\nmodels/x\r\n", ["recipes", "models/x"]),
        ("\tmodels/x/b.yaml", ["models/x/b.yaml"]),
        ("models/**/*.y*ml", ["models/x/b.yaml", "models/x/y/c.yml"]),
        ("with blank/*.yaml", ["with blank/d.yaml"]),
        ("with blank/d.yaml", ["with blank/d.yaml"]),
        ("[odd].yaml", ["[odd].yaml"]),
        ("nowhere/*.yaml", ["nowhere/*.yaml"]),
        ("nowhere.yaml", ["nowhere.yaml"]),
        ("-e.yaml", ["-e.yaml"]),
        ("$(touch stolen)", ["$(touch stolen)"]),
        ("`touch stolen`;touch stolen", ["`touch stolen`;touch stolen"]),
        ("${PATHS}", ["${PATHS}"]),
        ("recipes\nmodels/*/*.yaml", ["recipes", "models/x/b.yaml"]),
    ],
)
def test_what_the_action_validates(paths: str, expected: list[str], folder: Path) -> None:
    assert arguments(folder, paths) == ["validate", "--format", "github", "--", *expected]
    assert not (folder / "checkout" / "stolen").exists()


def test_a_data_root_and_a_policy_are_passed_on(folder: Path) -> None:
    passed = arguments(folder, "recipes", **{"data-root": "my data", "policy": "-house.yaml"})
    assert passed == [
        *("validate", "--format", "github", "--data-root", "my data", "--policy", "-house.yaml", "--", "recipes")
    ]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a right recipe, a wrong one, one whose warning is accepted, and a policy."""
    right = make_starter("dpsgd", "digits", "right")
    for name, text in (
        ("recipes/right.yaml", right),
        ("recipes/wrong.yaml", right.replace("epsilon:", "epsilom:")),
        ("recipes/large, ε.yaml", re.sub("epsilon: [0-9.]+", "epsilon: 12.0", right)),
        ("house.yaml", POLICY),
    ):
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkout" / name).write_text(text, encoding="utf-8")
    make_programs(tmp_path, f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m dprecipe "$@"\n')
    return tmp_path / "checkout"


def run(checkout: Path, **inputs: str) -> Outcome:
    return run_action(checkout, checkout.parent / "runner", inputs, skipped=("Install",))


@pytest.mark.slow
def test_findings_become_annotations_outputs_and_sarif(checkout: Path) -> None:
    done = run(checkout, sarif="reports/dprecipe.sarif")
    assert done.code == 1, done.errors
    document = json.loads(Path(done.outputs["findings"]).read_text("utf-8"))
    validator_of(SCHEMAS["findings.schema.json"]).validate(document)
    found = document["findings"]
    assert {each["file"] for each in found} == {"recipes/wrong.yaml", "recipes/large, ε.yaml"}
    shown = {(each["level"], each["file"], int(each["line"]), each["title"].split()[0]) for each in done.annotations}
    assert shown == {(each["severity"], each["file"], each["line"], each["code"]) for each in found}
    errors = sum(each["severity"] == "error" for each in found)
    assert (done.outputs["errors"], done.outputs["warnings"]) == (str(errors), str(len(found) - errors))
    assert errors >= 1 <= len(found) - errors
    sarif: dict[str, Any] = json.loads((checkout / "reports" / "dprecipe.sarif").read_text("utf-8"))
    assert [each["ruleId"] for each in sarif["runs"][0]["results"]] == [each["code"] for each in found]


@pytest.mark.slow
def test_a_right_recipe_passes_until_a_policy_is_against_it(checkout: Path) -> None:
    done = run(checkout, paths="recipes/right.yaml")
    assert (done.code, done.annotations, done.outputs["errors"]) == (0, [], "0")
    done = run(checkout, paths="recipes/right.yaml", policy="house.yaml")
    assert done.code == 1
    assert done.annotations[0]["title"].startswith("Q")


def test_what_can_not_be_done_fails_once(checkout: Path) -> None:
    (checkout / "empty").mkdir()
    done = run(checkout, paths="empty", sarif="none.sarif")
    assert done.code == 2
    assert done.errors.count("no *.yaml or *.yml") == 1
    assert not (checkout / "none.sarif").exists()
    assert done.outputs == {"findings": "", "errors": "", "warnings": ""}


def test_an_annotation_is_read_as_the_runner_reads_it() -> None:
    line = "::error file=a%2Cb%3Ac%25.yaml,line=3,col=1,title=R101 x::100%25 wrong%0Ado"
    (found,) = read_annotations(f"::set-output name=x::y\n{line}")
    assert found == {
        "level": "error",
        "file": "a,b:c%.yaml",
        "line": "3",
        "col": "1",
        "title": "R101 x",
        "message": "100% wrong\ndo",
    }


def test_the_page_lists_every_input_and_output() -> None:
    page = (ROOT / "docs" / "how-to" / "pull-requests.md").read_text(encoding="utf-8")
    rows = [re.findall(r"`([\w-]+)`", cell) for cell in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)]
    assert {row[0] for row in rows} | {name for row in rows for name in row if name in ACTION["outputs"]} == {
        *ACTION["inputs"],
        *ACTION["outputs"],
    }


def test_inputs_never_become_text_of_a_script() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]


@pytest.mark.parametrize(
    ("name", "is_looked_at"),
    [
        ("recipes/a.yaml", True),
        ("recipes/a.yml", True),
        ("x/recipes/y/a.yml", True),
        ("a.dprecipe.yaml", True),
        ("a.dprecipe.yml", True),
        ("a.yml", False),
        ("my_recipes/a.yaml", False),
        ("recipes/a.yaml.orig", False),
    ],
)
def test_what_the_hook_looks_at(name: str, is_looked_at: bool) -> None:
    assert bool(re.search(HOOK["files"], name)) is is_looked_at
