"""Every import of a library that the light install has not is guarded: one that is missing is a fault with a remedy."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dprecipe import libraries
from dprecipe.faults import UsageFault
from dprecipe.libraries import EXTRAS, TRAINING, check_libraries, importing_libraries
from tests.contract.test_wall import module_name

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dprecipe"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
IMPORT_NAMES = {"PyYAML": "yaml", "dp-accounting": "dp_accounting"}
GIVEN = {"dprecipe", "pydantic_core"}
"""Ourselves, and what is a part of a dependency."""
OF_A_NOTEBOOK = {("dprecipe.notebook", "IPython")}
"""It displays inside IPython alone, which is imported then."""
BY_NAME = ("import_module", "__import__", "importlib.import_module")
COMPUTED = {
    "dprecipe": "the public names, whose modules are light",
    "dprecipe.cli.main": "the module of the command that is called: those of this package, and of mechanisms",
    "dprecipe.contract.mechanism": "the light parts of a mechanism; its program behind `importing_libraries`",
    "dprecipe.contract.table": "the mechanisms, whose modules are light",
    "dprecipe.data.sources.base": "the readers, behind `importing_libraries`",
    "dprecipe.models.zoo.hub": "behind `importing_libraries`",
    "dprecipe.privacy.event_kinds": "the table of mechanisms",
}
"""Modules that import others by computed names, and which these are."""


def list_packages(requirements: list[str]) -> set[str]:
    return {Requirement(requirement).name for requirement in requirements}


DEPENDENCIES = {IMPORT_NAMES.get(name, name) for name in list_packages(PROJECT["dependencies"])} | GIVEN


@dataclass(frozen=True, slots=True)
class Import:
    """An import statement: `name` is a module, of ours wherever it is one."""

    name: str
    line: int
    guarded: bool
    """It stands in a block of `importing_libraries`."""
    lazy: bool
    """It stands in a function."""

    @property
    def library(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_optional(self) -> bool:
        return self.library not in DEPENDENCIES | sys.stdlib_module_names

    @property
    def modules(self) -> list[str]:
        """Those of ours that it imports: packages before what is in them."""
        parts = self.name.split(".")
        return [name for end in range(1, len(parts) + 1) if (name := ".".join(parts[:end])) in MODULES]


def list_imports(node: ast.AST, guarded: bool = False, lazy: bool = False) -> Iterator[Import]:
    """All that run: those for type checkers are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, guarded, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                yield Import(inner if inner in MODULES else str(child.module), child.lineno, guarded, lazy)
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            guards = isinstance(child, ast.With) and any(
                ast.unparse(item.context_expr).startswith("importing_libraries(") for item in child.items
            )
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from list_imports(child, guarded or guards, lazy or is_function)
        else:
            yield from (each for part in child.orelse for each in list_imports(part, guarded, lazy))


IMPORTS = {name: list(list_imports(ast.parse(path.read_text(encoding="utf-8")))) for name, path in MODULES.items()}


def find_needs() -> dict[str, set[str]]:
    """The optional libraries that the import of each module imports, by its own statements and by those of others."""
    needs = {name: {i.library for i in found if i.is_optional and not i.lazy} for name, found in IMPORTS.items()}
    before = None
    while before != needs:
        before = {name: set(libraries) for name, libraries in needs.items()}
        for name, found in IMPORTS.items():
            for each in found:
                if not each.lazy and not each.guarded:
                    needs[name].update(*(needs[module] for module in each.modules))
    return needs


NEEDS = find_needs()


def test_each_import_of_an_optional_library_is_guarded_or_behind_one_that_is() -> None:
    """A module that imports one at its top is behind a guard wherever it is imported; a function may import what its
    module has imported already."""
    assert len(MODULES) > 400
    wrong = [
        f"{name}:{each.line} imports {each.name}"
        for name, found in IMPORTS.items()
        for each in found
        if not each.guarded
        and (name, each.library) not in OF_A_NOTEBOOK
        and not ({each.library} if each.is_optional else set()).union(*(NEEDS[m] for m in each.modules)) <= NEEDS[name]
    ]
    assert wrong == []
    behind = {name for name, libraries in NEEDS.items() if libraries}
    assert 100 < len(behind) < len(MODULES) / 2


def test_each_optional_library_is_of_an_extra() -> None:
    imported = {each.library for found in IMPORTS.values() for each in found if each.is_optional}
    known = {name for extra in EXTRAS.values() for name in extra}
    assert imported - {library for _, library in OF_A_NOTEBOOK} <= known
    assert set(TRAINING) <= known
    for extra, packages in EXTRAS.items():
        listed = list_packages(PROJECT["optional-dependencies"][extra])
        assert set(packages.values()) <= listed, extra
        assert listed - set(packages.values()) <= {"pyarrow"}, extra  # what `duckdb` needs of `train`
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"dev", "docs"}


def test_modules_that_import_by_computed_names_are_known() -> None:
    computed = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME
    }
    assert computed == set(COMPUTED)
    text = MODULES["dprecipe"].read_text(encoding="utf-8")
    homes = {module for module in re.findall(r'"(dprecipe\.[\w.]+)"', text) if module in MODULES}
    assert homes
    assert {module for module in homes if NEEDS[module]} == set()


def test_no_other_module_asks_whether_a_library_is_there() -> None:
    asks = {
        name
        for name, path in MODULES.items()
        if re.search(r"except (ImportError|ModuleNotFoundError)|\bfind_spec\(", path.read_text(encoding="utf-8"))
    }
    assert asks == {"dprecipe.libraries", "dprecipe.contract.mechanism"}  # parts of a mechanism


@pytest.mark.parametrize("name", [name for extra in EXTRAS.values() for name in extra])
def test_a_missing_library_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra, package = next((extra, each[name]) for extra, each in EXTRAS.items() if name in each)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageFault) as imported, importing_libraries("this"):
        __import__(name)
    with pytest.raises(UsageFault) as checked:
        check_libraries("this", name)
    for fault in (imported.value, checked.value):
        assert fault.message == f"this needs {package}, which is not installed"
        assert fault.remedy == f"pip install 'dprecipe[{extra}]'"


def test_several_missing_libraries_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(UsageFault) as caught:
        check_libraries("--ray", "torch", "sklearn", "ray")
    assert caught.value.message == "--ray needs torch, scikit-learn, ray, which are not installed"
    assert caught.value.remedy == "pip install 'dprecipe[train,ray]'"
