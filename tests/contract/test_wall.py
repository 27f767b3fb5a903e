"""Invariants 1 and 2 of the house: the wall, and who may read what."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from dprecipe.contract.table import MECHANISMS

PACKAGE = Path(__file__).parents[2] / "dprecipe"
BEHIND = (
    "training",
    "models/zoo",
    "models/build.py",
    "models/initial.py",
    "models/lora.py",
    "models/form.py",
    "models/decoding.py",
    "models/language_model.py",
    "models/synthetic.py",
    "models/load.py",
    "models/onnx.py",
    "models/outputs.py",
    "models/modules",
    "data/augment.py",
    "cli/resemblance.py",
)
RIGHT_OF_THE_WALL = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).as_posix().startswith(BEHIND) or "train" in path.relative_to(PACKAGE).parts
]
"""Training, what builds models, and each mechanism's `train/`."""
LEFT_OF_THE_WALL = [
    path for path in sorted(PACKAGE.rglob("*.py")) if path not in RIGHT_OF_THE_WALL and path.name != "__main__.py"
]

BLOCKED = """
import sys
for name in ("torch", "lightning", "pytorch_lightning", "safetensors.torch"):
    sys.modules[name] = None
"""


def module_name(path: Path) -> str:
    parts = ("dprecipe", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(part for part in parts if part != "__init__")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, check=False)


def test_the_wall_has_two_sides() -> None:
    assert len(RIGHT_OF_THE_WALL) >= 15
    assert len(LEFT_OF_THE_WALL) >= 60


def test_nothing_left_of_the_wall_imports_torch() -> None:
    names = [module_name(path) for path in LEFT_OF_THE_WALL]
    done = run(f"import importlib\nfor name in {names!r}: importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


RECIPES = [str(path) for path in sorted((PACKAGE.parent / "recipes").rglob("*.yaml"))]
"""Of which one is there to be refused: it shows a problem that cannot be."""


COMMANDS = [
    ["--help"],
    ["validate", *(path for path in RECIPES if "asoodeh2020-figure3.yaml" not in path)],
    ["plan", "recipes/quickstart.yaml"],
    ["plan", "recipes/mnist-dpsgd.yaml"],
    ["sweep", "recipes/quickstart.yaml", "--over", "budget.epsilon=1,3", "--plan"],
    ["show", "recipes/quickstart.yaml"],
    ["data", "check", "recipes/quickstart.yaml"],
    ["plan", "recipes/pate-digits.yaml"],
    ["plan", "recipes/papers/asoodeh2020-figure2.yaml"],
    ["schema", "--check", "--out", "schemas"],
]
EACH_IN_TURN = """
import os
os.chdir({root!r})
from dprecipe.cli.main import main
for arguments in {commands!r}:
    sys.argv = ["dprecipe", *arguments]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (arguments, ended.code)
"""


@pytest.mark.parametrize(
    "commands",
    [
        COMMANDS,
        pytest.param([["noise", "recipes/quickstart.yaml", "--set", "budget.accountant=rdp"]], marks=pytest.mark.slow),
    ],
    ids=["usual", "noise"],
)
def test_commands_left_of_the_wall_run_without_torch(commands: list[list[str]]) -> None:
    """In one process, in turn: what would import torch could not in any of them."""
    done = run(EACH_IN_TURN.format(root=str(PACKAGE.parent), commands=commands))
    assert done.returncode == 0, done.stderr + done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys\nimport dprecipe\nheavy = {'numpy', 'scipy', 'pydantic', 'yaml', 'typer'} & set(sys.modules)\n"
    done = run(code + "assert not heavy, heavy")
    assert done.returncode == 0, done.stderr


AFTER_THE_PLAN = [
    *(path for path in RIGHT_OF_THE_WALL if path.parts[-2] != "zoo" and path.stem != "fit"),
    *(path for path in sorted((PACKAGE / "release").glob("*.py")) if path.stem != "rebuild"),
    *sorted((PACKAGE / "mechanisms").rglob("certificate.py")),
    PACKAGE / "mechanisms" / "pate" / "charges.py",
    PACKAGE / "mechanisms" / "pate" / "cost_statement.py",
    *sorted((PACKAGE / "mechanisms").glob("*/plan.py")),
]
"""What obeys the plan. A codebook is fitted, and a certificate's recipe is planned again, before there is one."""


@pytest.mark.parametrize("path", AFTER_THE_PLAN, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_after_the_plan_nobody_reads_the_recipes_privacy_fields(path: Path) -> None:
    """The run and the release obey the plan: they may not import what would let them read the mechanism or budget
    block."""
    forbidden = {"Recipe", "Budget", "Loaded", "read_recipe"} | {m.block.__name__ for m in MECHANISMS.values()}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dprecipe"):
            names = {alias.name for alias in node.names}
            if node.module != "dprecipe.contract.plan":
                events = node.module.startswith("dprecipe.privacy") or node.module.endswith(".events")
                assert events or not names & forbidden, f"{path.name}:{node.lineno}"
            assert node.module not in ("dprecipe.recipe.read", "dprecipe.planning.make"), f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("name", ["plan", "run"])
def test_commands_show_the_plan_and_not_the_recipe(name: str) -> None:
    """They read a recipe in order to plan it; what they say is the plan's."""
    tree = ast.parse((PACKAGE / "cli" / f"{name}.py").read_text(encoding="utf-8"))
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not read & {"recipe", "resolved", "sampling", "noise", "aggregator", "clip"}


def test_nobody_reads_the_recipe_inside_the_plan() -> None:
    """Who writes it down whole (the run's folder, the certificate's provenance, the plan's digest) is all who touches
    it; `verify` plans the certificate's recipe again, and asks the plan."""
    readers = {
        path.relative_to(PACKAGE).as_posix(): sum(
            isinstance(node, ast.Attribute) and node.attr == "resolved"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    allowed = {"contract/plan.py": 1, "release/certificate.py": 3, "training/run/folder.py": 1}
    allowed |= {"planning/again.py": 2, "planning/make.py": 1, "release/rebuild.py": 1}  # a certificate's defaults
    allowed |= {"nonprivate/plan.py": 1, "training/run/nonprivate.py": 1}  # of a recipe without privacy
    allowed |= {"release/registry.py": 1}  # the author's description, for the entry of a register
    allowed |= {"release/bill_model.py": 1}  # what the author declares of data and model, for a bill of materials
    allowed |= {"training/audit/program.py": 1}  # an audit holds the claim against what the recipe states
    assert {name: count for name, count in readers.items() if count} == allowed
