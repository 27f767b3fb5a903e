"""Every mechanism has a page beside its code, and every sentence of its guarantee a test."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dprecipe"
MECHANISMS = sorted(path.parent for path in (PACKAGE / "mechanisms").glob("*/schema.py"))
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
HEADINGS = ("What it does", "Formal guarantee", "Notation", "Edge cases", "Which test proves what", "What lies where")


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def find_section(page: str, heading: str) -> str:
    """The text below a heading of the second level."""
    match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, f"there is no section {heading!r}"
    return match[1]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_every_mechanism_has_a_page_with_the_same_sections(mechanism: Path) -> None:
    page = read_text(mechanism / "README.md")
    assert tuple(re.findall(r"^## (.*)$", page, re.MULTILINE)) == HEADINGS


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_every_sentence_of_a_guarantee_has_its_test(mechanism: Path) -> None:
    """Sentences are numbered: G1, G2, … under the guarantee, and each of them has tests."""
    page = read_text(mechanism / "README.md")
    stated = re.findall(r"^- \*\*(G\d+)\*\*", find_section(page, "Formal guarantee"), re.MULTILINE)
    rows = dict(re.findall(r"^\| (G\d+) \| (.*) \|$", find_section(page, "Which test proves what"), re.MULTILINE))
    assert len(stated) >= 3
    assert stated == list(rows) == [f"G{number}" for number in range(1, len(stated) + 1)]
    for number, tests in rows.items():
        assert any(name for _, name in TEST.findall(tests)), number


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_every_module_of_a_mechanism_is_listed_on_its_page(mechanism: Path) -> None:
    lies = find_section(read_text(mechanism / "README.md"), "What lies where")
    listed = set(re.findall(r"^\| `([\w./]+)` \|", lies, re.MULTILINE))
    modules = {path.relative_to(mechanism).as_posix() for path in mechanism.rglob("*.py") if path.name != "__init__.py"}
    assert listed == modules | {"__init__.py", "synonyms.toml"}


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_every_key_of_a_mechanism_is_in_its_notation(mechanism: Path) -> None:
    """The top-level keys of its block."""
    from dprecipe.contract.table import mechanism_of

    notation = find_section(read_text(mechanism / "README.md"), "Notation")
    keys = set(mechanism_of(mechanism.name).block.model_fields) - {"kind"}
    assert keys
    assert keys <= set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", notation))))


def test_pages_of_mechanisms_stay_out_of_the_wheel() -> None:
    """They name tests and documents, which a wheel does not hold."""
    settings = tomllib.loads(read_text(ROOT / "pyproject.toml"))
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"] == ["dprecipe/mechanisms/*/README.md"]


def test_the_page_of_the_architecture_lists_every_kind_of_event() -> None:
    from dprecipe.privacy.event_kinds import event_kinds

    listed = find_section(read_text(ROOT / "docs" / "explanation" / "architecture.md"), "Events").partition(
        "| event | what it is |"
    )[2]
    assert set(re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE)) == set(event_kinds())
