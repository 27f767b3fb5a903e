"""The light install: every command, in an environment that has the dependencies alone."""

from __future__ import annotations

import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import typer

from dprecipe.cli.main import app
from dprecipe.libraries import EXTRAS
from tests.light.cases import GROUPS, Case
from tests.light.conftest import ROOT, Light
from tests.light.releases import RECIPES

pytestmark = pytest.mark.light

CASES = [case for group in GROUPS for case in group]
OTHERS = ("pandas", "polars", "IPython", "pytest", "hypothesis", "jsonschema")
"""Other packages that a full environment may have."""
LACKING = f"""
from importlib.util import find_spec
print([name for name in {[*(name for extra in EXTRAS.values() for name in extra), *OTHERS]!r} if find_spec(name)])
"""
PLANS = """
import sys
from pathlib import Path
from dprecipe.cli.main import main
for recipe in sorted(Path("recipes").rglob("*.yaml")):
    sys.argv = ["dprecipe", "plan", str(recipe)]
    try:
        main()
    except SystemExit as ended:
        print("ended", recipe, ended.code or 0)
"""


@pytest.fixture(scope="module")
def results(prepared: Light) -> dict[str, subprocess.CompletedProcess[str]]:
    """By command line: what it has done."""

    def run_group(group: tuple[Case, ...]) -> list[tuple[str, subprocess.CompletedProcess[str]]]:
        return [(case.line, prepared.run("dprecipe", *shlex.split(case.line))) for case in group]

    with ThreadPoolExecutor(2) as pool:
        return dict(done for group in pool.map(run_group, GROUPS) for done in group)


def test_the_environment_has_the_dependencies_alone(light: Light) -> None:
    assert light.run("python", "-c", LACKING).stdout == "[]\n"
    where = light.run("python", "-c", "import dprecipe; print(dprecipe.__file__)").stdout
    assert Path(where.strip()).is_relative_to(light.environment)


@pytest.mark.parametrize("case", CASES, ids=[case.line for case in CASES])
def test_a_command_works_or_names_what_it_needs(
    case: Case, results: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    done = results[case.line]
    said = done.stdout + done.stderr
    assert done.returncode == case.code, said
    assert case.says in said
    for word in ("internal error", "Traceback", "Warning", "ModuleNotFoundError"):
        assert word not in said


def test_every_recipe_is_planned(prepared: Light) -> None:
    done = prepared.run("python", "-c", PLANS)
    codes = dict(re.findall(r"^ended (\S+) (\d+)$", done.stdout, re.MULTILINE))
    assert len(codes) == len(list((ROOT / "recipes").rglob("*.yaml")))
    assert {recipe for recipe, code in codes.items() if code != "0"} == {"recipes/papers/asoodeh2020-figure3.yaml"}
    assert "internal error" not in done.stderr


def test_every_command_and_every_release_is_tried() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    lines = [case.line for case in CASES]
    assert len(commands) > 15
    assert commands - {line.split()[0] for line in lines} == set()
    assert {name for name in RECIPES if not any(line.startswith(f"verify {name}") for line in lines)} == set()
