"""The house of modules: small ones, a name for each class, and no function named by one word of dialect."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dprecipe"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 400
DIALECT = {"hold_alike", "useless", "foreign", "told", "led", "found", "made", "held", "wide"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def identify(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def definitions(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """What a module defines at its top level, branches of `if` and `try` included."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            for name in ("body", "orelse", "finalbody"):
                yield from definitions(getattr(node, name, []))


def test_no_module_is_longer_than_the_limit() -> None:
    assert len(MODULES) > 250
    lines = {identify(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name for name, count in lines.items() if count > MAX_LINES} == set()


def test_no_two_modules_define_a_class_of_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in definitions(tree_of(path).body):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(identify(path))
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_function_of_a_module_has_a_name_of_dialect() -> None:
    """Methods and local functions are not meant: they are read beside what they belong to."""
    names = {
        (identify(path), node.name)
        for path in MODULES
        for node in definitions(tree_of(path).body)
        if not isinstance(node, ast.ClassDef)
    }
    assert len(names) > 1000
    assert {(where, name) for where, name in names if name in DIALECT} == set()
