"""docs/pitfalls.md lists every trap of DP-SGD, and every test that the docs name exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
TRAPS = {1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 21, 22, 24, 25}
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_trap_is_listed_once_with_tests() -> None:
    text = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
    parts = re.split(r"^### T(\d+): ", text, flags=re.MULTILINE)[1:]
    numbers = [int(number) for number in parts[::2]]
    assert sorted(numbers) == sorted(TRAPS)
    for number, body in zip(numbers, parts[1::2], strict=True):
        named = [name for _, name in NAMED.findall(body) if name]
        assert named, f"T{number} names no test"


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_every_test_that_is_named_exists(document: Path) -> None:
    for file, name in NAMED.findall(document.read_text(encoding="utf-8")):
        assert (ROOT / file).is_file(), file
        assert not name or name in functions_of(ROOT / file), f"{file}::{name}"
