"""Packages import one way, and the core names no mechanism: lazy imports and those of type checkers included."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dprecipe"

ORDER = (
    (
        "faults",
        "screen",
        "page",
        "notebook",
        "progress",
        "durable",
        "libraries",
        "timeline",
        "__version__",
    ),
    ("text",),
    ("language",),
    ("priors",),
    ("noise",),
    ("privacy",),
    ("account",),
    ("data",),
    ("models",),
    ("contract",),
    ("noisy_sum",),
    ("recipe",),
    ("planning",),
    ("release",),
    ("policy", "comparison"),
    ("nonprivate",),
    ("training",),
    ("sweep",),
    ("api", "cli", "__init__", "__main__"),
    ("mechanisms",),
)
"""A line imports from its own and from those above it. Mechanisms are on the last line: they are reached by module name
alone (`contract.table`, `Mechanism.import_runner`, `Mechanism.commands`)."""

CORE = ("privacy", "recipe", "planning", "training", "release", "cli", "api.py")
NAMED = re.compile(r"(?i)(?<![a-z])(?:dpsgd|encoded|pate|pnsgd)(?![a-z])|(?-i:Dpsgd|Encoded|Pate|Pnsgd)(?=[A-Z])")


def modules() -> dict[str, Path]:
    """Every module by its name without `dprecipe.`; packages by theirs."""
    paths = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(parts[:-1] if parts[-1] == "__init__" and parts[:-1] else parts): p for p, parts in paths.items()}


MODULES = modules()


def imports(path: Path) -> Iterator[str]:
    """What the import statements of a module name, wherever they stand: modules where they are ours."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [n if n.removeprefix("dprecipe.") in (*MODULES, "__version__") else str(node.module) for n in paths]
        else:
            continue
        yield from (name.removeprefix("dprecipe.") for name in names if name.split(".")[0] == "dprecipe")


def line_of(module: str) -> int:
    """Where in the order a module stands."""
    first = module.split(".")[0]
    return next(index for index, line in enumerate(ORDER) if ("__init__" if first == "dprecipe" else first) in line)


def test_every_module_has_a_place_in_the_order() -> None:
    assert len(MODULES) > 250
    assert {line_of(module) for module in MODULES} == set(range(len(ORDER)))


def test_packages_import_from_packages_before_them() -> None:
    wrong = {(m, name) for m, path in MODULES.items() for name in imports(path) if line_of(name) > line_of(m)}
    assert sorted(wrong) == []


def mechanisms() -> list[str]:
    return sorted(path.parent.name for path in (PACKAGE / "mechanisms").glob("*/schema.py"))


@pytest.mark.parametrize("mechanism", mechanisms())
def test_mechanisms_never_import_each_other(mechanism: str) -> None:
    others = {f"mechanisms.{other}" for other in mechanisms() if other != mechanism}
    mine = {module: path for module, path in MODULES.items() if module.split(".")[:2] == ["mechanisms", mechanism]}
    assert len(mine) >= 5
    imported = [(module, name) for module, path in mine.items() for name in imports(path)]
    assert [(module, name) for module, name in imported if ".".join(name.split(".")[:2]) in others] == []


def test_the_core_names_no_mechanism() -> None:
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] in CORE]
    assert len(files) > 120
    lines = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8").splitlines() for path in files}
    named = {
        f"{name}:{number}" for name, text in lines.items() for number, line in enumerate(text, 1) if NAMED.search(line)
    }
    assert named == set(), "the core asks a mechanism's traits, or the mechanism's own part"
