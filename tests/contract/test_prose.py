"""The English of the package and of the pages of findings: docstrings that stand alone, and plain words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "dprecipe"
FINDINGS = PACKAGE.parent / "docs" / "reference" / "findings"
CONTINUES = re.compile(r"(Of|Whether|What|Who|Whom|How|Those|Which|Where|That)\b")
"""Beginnings of a docstring that continues the name it describes and can't be read alone."""
RATIONED = {
    "anew": 11,
    "held against": 2,
    "in the place of": 0,
    "nobody": 30,
    "of which": 26,
    "so many": 1,
    "told": 17,
    "whoever": 10,
}
"""Lines of the package that may have each phrase. They are to become fewer: lower a number, never raise one."""
PLAIN_ROOM = re.compile(r"\b(make|get|has|have|needs?|is) (no |more )?room\b")
"""Room is space on a disk or in a line, and nothing else; it was a mechanism, memory, a tolerance and a budget."""


def find_docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The strings that stand alone as statements: of modules, classes, functions and attributes; with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for each in node.body:
                match each:
                    case ast.Expr(ast.Constant(str(text))):
                        yield each.lineno, text.strip()


def find_lines(phrase: str) -> list[str]:
    """The lines of the package with a phrase, with their places."""
    wanted = re.compile(rf"\b{phrase}\b", re.IGNORECASE)
    return [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if wanted.search(line)
    ]


def test_every_docstring_stands_alone() -> None:
    found, count = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in find_docstrings(path):
            count += 1
            if CONTINUES.match(text):
                found.append(f"{path.relative_to(PACKAGE)}:{line}: {text.splitlines()[0]}")
    assert count > 5000
    assert found == []


@pytest.mark.parametrize("phrase", RATIONED)
def test_a_rationed_phrase_becomes_no_more_frequent(phrase: str) -> None:
    assert len(find_lines(phrase)) <= RATIONED[phrase], "\n".join(find_lines(phrase))


def test_a_mechanism_is_called_that_and_the_core_too() -> None:
    assert find_lines("trunk") == []
    assert [line for line in find_lines("room") if not PLAIN_ROOM.search(line)] == []


def test_titles_of_findings_are_plain() -> None:
    pages = sorted(FINDINGS.glob("[A-Z]*.md"))
    assert len(pages) > 200
    for page in pages:
        title = page.read_text(encoding="utf-8").splitlines()[0]
        assert not re.search(r"\b(anew|whoever|so many|held against|trunk|room)\b", title), title
