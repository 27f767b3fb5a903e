"""Texts that can be read alone: the first lines of docstrings, and words that are rationed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dprecipe"
FINDINGS = ROOT / "docs" / "findings"
MODULES = sorted(PACKAGE.rglob("*.py"))
CONTINUES = re.compile(r"(Of|Whether|What|Who|Whom|How|Those)\b")
"""How a text begins that continues the name before it, and says little without it."""
MECHANISM = re.compile(r"(?i)\b(rooms?|trunk)\b")
RATIONED = {
    "of which": 60,
    "told": 40,
    "nobody": 40,
    "anew": 30,
    "held against": 10,
    "whoever": 20,
    "in the place of": 10,
    "so many": 40,
}
"""Words that a reader has to read twice, with how often they may be used in the package's texts and its findings."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, its classes, functions and attributes, each with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value.strip()


def texts(path: Path) -> str:
    """All words of a file: code and its comments, or a page."""
    return path.read_text(encoding="utf-8").replace("\n", " ")


def test_first_lines_stand_alone() -> None:
    found = [(path.relative_to(ROOT).as_posix(), line, text) for path in MODULES for line, text in docstrings(path)]
    assert len(found) > 6000
    assert [f"{name}:{line} {text[:60]}" for name, line, text in found if CONTINUES.match(text)] == []


def test_no_private_word_for_a_mechanism() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in MODULES if MECHANISM.search(texts(path))}
    assert found == set()


def test_words_are_rationed() -> None:
    pages = [*MODULES, *sorted(FINDINGS.glob("*.md"))]
    assert len(pages) > 900
    found = Counter({word: sum(len(re.findall(rf"\b{word}\b", texts(page))) for page in pages) for word in RATIONED})
    assert {word: number for word, number in found.items() if number > RATIONED[word]} == {}


@pytest.mark.parametrize("text", ["Of a run: its name.", "Whether it ends.", "What is left."])
def test_such_beginnings_are_found(text: str) -> None:
    assert CONTINUES.match(text)
