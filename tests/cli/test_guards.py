"""The guards of pull requests: the GitHub Action's script, as it stands in `action.yml`, and the pre-commit hook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
HOOK = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))[0]
STUB = '#!/bin/sh\nfor argument in "$@"; do printf "%s\\n" "$argument"; done\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with recipes, and a `dprecipe` that prints its arguments."""
    stub = tmp_path / "runner" / "dprecipe" / "bin" / "dprecipe"
    stub.parent.mkdir(parents=True)
    stub.write_text(STUB, encoding="utf-8")
    stub.chmod(0o755)
    for name in ("recipes/a.yaml", "models/x/b.yaml", "models/x/y/c.yml", "with blank/d.yaml", "[odd].yaml", "-e.yaml"):
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkout" / name).touch()
    return tmp_path


def arguments(folder: Path, paths: str, data_root: str = "") -> list[str]:
    script = next(step["run"] for step in ACTION["runs"]["steps"] if step["name"] == "Validate")
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder / "checkout",
        env={**os.environ, "RUNNER_TEMP": str(folder / "runner"), "PATHS": paths, "DATA_ROOT": data_root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


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


def test_a_data_root_is_passed_on(folder: Path) -> None:
    assert arguments(folder, "recipes", "my data")[:5] == ["validate", "--format", "github", "--data-root", "my data"]


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
