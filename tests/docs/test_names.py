"""What the documents name exists: files, folders, modules, tests, `make` targets; and every folder says what is in it."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

import dprecipe

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dprecipe"
ROOMS = sorted(path.parent for path in (PACKAGE / "mechanisms").glob("*/schema.py"))
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / ".github").rglob("*.md"),
        *PACKAGE.rglob("README.md"),
    ]
)
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
TREE = r"(?:dprecipe|tests|docs|recipes|schemas|benchmarks|examples|\.github|\.ci)"
FILE = re.compile(rf"`({TREE}/[\w./<>*-]*)`")
"""A path from the root of the repository. `<name>` and `*` stand for any name."""
MODULE = re.compile(r"`(dprecipe(?:\.\w+)+)(?:\(\))?`")
TARGET = re.compile(r"`make ([\w-]+)`")
HEADINGS = ("What it does", "Formal guarantee", "Notation", "Edge cases", "Which test proves what", "What lies where")


def identify(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def names_defined_in(path: Path) -> frozenset[str]:
    """Functions, classes and values at the top level of a module."""
    names: set[str] = set()
    for node in ast.parse(read_text(path)).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return frozenset(names)


def resolve(dotted: str) -> bool:
    """Whether a dotted name is a package, a module, or what one of them defines."""
    path, parts = ROOT, dotted.split(".")
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    module = path / "__init__.py"
    if parts and (path / f"{parts[0]}.py").is_file():
        module = path / f"{parts.pop(0)}.py"
    return not parts or parts[0] in names_defined_in(module) or dotted == "dprecipe.dev"


def section(page: str, heading: str) -> str:
    """The text below a heading of the second level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {heading!r}"
    return found[1]


def test_there_are_documents() -> None:
    assert len(DOCUMENTS) > 100
    assert {room.name for room in ROOMS} >= {"dpsgd", "encoded", "pate", "pnsgd"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=identify)
def test_every_test_that_is_named_exists(document: Path) -> None:
    for file, name in TEST.findall(read_text(document)):
        assert (ROOT / file).is_file(), file
        assert not name or name in names_defined_in(ROOT / file), f"{file}::{name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=identify)
def test_every_path_that_is_named_exists(document: Path) -> None:
    for name in FILE.findall(read_text(document)):
        pattern = re.sub(r"<\w+>", "*", name).rstrip("/")
        assert any(ROOT.glob(pattern)), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=identify)
def test_every_module_that_is_named_exists(document: Path) -> None:
    for name in MODULE.findall(read_text(document)):
        if not name.endswith((".yaml", ".v1")):
            assert resolve(name), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=identify)
def test_every_target_that_is_named_exists(document: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", read_text(ROOT / "Makefile"), re.MULTILINE))
    assert set(TARGET.findall(read_text(document))) <= targets


@pytest.mark.parametrize("package", sorted(PACKAGE.rglob("__init__.py")), ids=identify)
def test_every_package_says_what_lies_in_it(package: Path) -> None:
    said = ast.get_docstring(ast.parse(read_text(package)))
    assert said
    assert len(said) > 40


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_mechanism_has_a_page_with_the_same_sections(room: Path) -> None:
    page = read_text(room / "README.md")
    assert tuple(re.findall(r"^## (.*)$", page, re.MULTILINE)) == HEADINGS


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_sentence_of_a_guarantee_has_its_test(room: Path) -> None:
    """Sentences are numbered: G1, G2, … under the guarantee, and each of them has tests."""
    page = read_text(room / "README.md")
    stated = re.findall(r"^- \*\*(G\d+)\*\*", section(page, "Formal guarantee"), re.MULTILINE)
    rows = dict(re.findall(r"^\| (G\d+) \| (.*) \|$", section(page, "Which test proves what"), re.MULTILINE))
    assert len(stated) >= 3
    assert stated == list(rows) == [f"G{number}" for number in range(1, len(stated) + 1)]
    for number, tests in rows.items():
        assert any(name for _, name in TEST.findall(tests)), number


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_module_of_a_mechanism_is_listed_on_its_page(room: Path) -> None:
    listed = set(re.findall(r"^\| `([\w./]+)` \|", section(read_text(room / "README.md"), "What lies where"), re.MULTILINE))
    modules = {path.relative_to(room).as_posix() for path in room.rglob("*.py") if path.name != "__init__.py"}
    assert listed == modules | {"__init__.py"}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_key_of_a_mechanism_is_in_its_notation(room: Path) -> None:
    """The top-level keys of its block."""
    from dprecipe.mechanisms.table import mechanism_of

    notation = section(read_text(room / "README.md"), "Notation")
    keys = set(mechanism_of(room.name).block.model_fields) - {"kind"}
    assert keys
    assert keys <= set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", notation))))


def test_pages_of_mechanisms_stay_out_of_the_wheel() -> None:
    """They name tests and documents, which a wheel does not hold."""
    settings = tomllib.loads(read_text(ROOT / "pyproject.toml"))
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"] == ["dprecipe/mechanisms/*/README.md"]


def test_the_citation_names_the_version() -> None:
    citation = yaml.safe_load(read_text(ROOT / "CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert str(citation["version"]) == dprecipe.__version__
    assert {"title", "message", "authors", "license", "type", "abstract"} <= set(citation)


def test_forms_for_issues_ask_for_no_private_data() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert {form.stem for form in forms} >= {"config", "false_refusal", "bug", "mechanism"}
    for form in forms:
        content = yaml.safe_load(read_text(form))
        if form.stem != "config":
            assert content["name"]
            assert content["description"]
            assert "private/" in read_text(form), "it says what not to send"


def test_terms_of_the_glossary_are_in_order_and_have_a_source() -> None:
    page = read_text(ROOT / "docs" / "glossary.md")
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    terms = [term for term, *_ in rows]
    assert len(terms) > 60
    assert len(set(terms)) == len(terms)
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        here = re.findall(r"^\| \*\*(.+?)\*\* \|", part, re.MULTILINE)
        assert here == sorted(here, key=str.casefold), part.splitlines()[0]
    assert all(meaning.strip() and source.strip() for _, _, meaning, source in rows)


def test_old_words_do_not_come_back() -> None:
    """Of the pages that a newcomer reads first; the table stands in docs/glossary.md."""
    old = re.compile(r"\b(second opinion|hidden run|staircase|made-up records|foreign|lots?)\b", re.IGNORECASE)
    pages = ["CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", *(f"{identify(room)}/README.md" for room in ROOMS)]
    for name in pages:
        text = re.sub(r"`[^`]+`|\([^)]*\.md[^)]*\)", "", read_text(ROOT / name))
        assert not old.search(text), f"{name}: {old.search(text)}"
