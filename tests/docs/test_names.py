"""What the documents name exists: files, modules, tests, `make` targets; and every package says what is in it."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml

import dprecipe

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dprecipe"
MECHANISMS = sorted(path.parent for path in (PACKAGE / "mechanisms").glob("*/schema.py"))
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
FILE = re.compile(rf"`(?!dprecipe/v1)({TREE}/[\w./<>*-]*)`")
"""A path from the root of the repository. `<name>` and `*` stand for any name."""
MODULE = re.compile(r"`(dprecipe(?:\.\w+)+)(?:\(\))?`")
TARGET = re.compile(r"`make ([\w-]+)[^`]*`")
KEYS = set(re.findall(r'"(\w+)":', (ROOT / "schemas" / "recipe.schema.json").read_text(encoding="utf-8")))
MODULES = {path.stem for path in PACKAGE.rglob("*") if path.suffix in ("", ".py")}
PUBLIC = {f"dprecipe.{name}" for name in dprecipe.__all__}


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
    return not parts or parts[0] in names_defined_in(module) or dotted in PUBLIC


def test_there_are_documents() -> None:
    assert len(DOCUMENTS) > 100
    assert {mechanism.name for mechanism in MECHANISMS} >= {"dpsgd", "encoded", "pate", "pnsgd"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=identify)
def test_every_test_that_is_named_exists(document: Path) -> None:
    for file, name in TEST.findall(read_text(document)):
        assert (ROOT / file).is_file(), file
        assert not name or name in names_defined_in(ROOT / file), f"{file}::{name}"


def test_every_attack_of_the_threat_model_names_its_tests() -> None:
    """Their links are followed with those of all documents."""
    model = read_text(ROOT / "SECURITY.md").partition("## Threat model")[2].partition("\n## ")[0]
    rows = [line for line in model.splitlines() if line.startswith("| ") and not line.startswith("| boundary |")]
    assert len(rows) >= 14
    for row in rows:
        assert TEST.findall(row.split(" | ")[-1]), row


def test_the_code_owners_own_what_is_there() -> None:
    lines = read_text(ROOT / ".github" / "CODEOWNERS").splitlines()
    owned = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert owned[0] == "*"
    assert all((ROOT / path.lstrip("/")).exists() and path.startswith("/") for path in owned[1:])


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


def test_every_module_that_code_names_exists() -> None:
    """A name such as `training.steps` is a key of a recipe."""
    schema = json.loads(read_text(ROOT / "schemas" / "recipe.schema.json"))["$defs"]
    keys = {f"training.{key}" for key in schema["Training"]["properties"]}
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"data", "release"}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in re.findall(r"`(\w+(?:\.\w+)+)(?:\(\))?`", read_text(path)):
            full = name if name.startswith("dprecipe.") else f"dprecipe.{name}"
            if full.split(".")[1] in packages and name not in keys and not name.endswith((".py", ".json", ".svg")):
                assert resolve(full), f"{path}: {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=identify)
def test_every_target_that_is_named_exists(document: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", read_text(ROOT / "Makefile"), re.MULTILINE))
    assert set(TARGET.findall(read_text(document))) <= targets


def test_the_guide_for_contributors_lists_every_target() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", read_text(ROOT / "Makefile"), re.MULTILINE)
    listed = re.findall(r"^\| `make ([\w-]+)[^`]*` \|", read_text(ROOT / "CONTRIBUTING.md"), re.MULTILINE)
    assert sorted(listed) == sorted(set(phony.split()) - {"demo"})


@pytest.mark.parametrize("package", sorted(PACKAGE.rglob("__init__.py")), ids=identify)
def test_every_package_says_what_lies_in_it(package: Path) -> None:
    text = ast.get_docstring(ast.parse(read_text(package)))
    assert text
    assert len(text) > 40
    for name in MODULE.findall(text):
        assert resolve(name), name
    for name in re.findall(r"`([a-z_]+)`", text.partition("\n\n")[2]):
        assert name in MODULES | KEYS | {"vmap"}, f"{name} is no module, nor a key of a recipe"


def test_every_page_is_reached_by_links_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or not page.is_file():
            continue
        seen.add(page)
        targets = re.findall(r"\]\(([^)\s#:]+\.md)(?:#[^)]*)?\)", read_text(page))
        waiting += [(page.parent / target).resolve() for target in targets]
    # The site lists the findings' pages, and so does `dprecipe explain --list`.
    pages = {page for page in DOCUMENTS if not {".github", "data", "findings"} & set(page.parts)}
    assert pages - seen == set()


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


def test_old_words_do_not_come_back() -> None:
    """On no page but docs/reference/glossary.md, where the table of them stands."""
    old = re.compile(r"\b(second opinion|hidden run|staircase|made[- ]up|foreign|lots?)\b", re.IGNORECASE)
    pages = [identify(page) for page in (ROOT / "CHANGELOG.md", *DOCUMENTS)]
    for name in (page for page in pages if page != "docs/reference/glossary.md"):
        text = re.sub(r"`[^`]+`|\([^)]*\.md[^)]*\)", "", read_text(ROOT / name))
        assert not old.search(text), f"{name}: {old.search(text)}"


def test_no_page_says_a_thing_twice() -> None:
    """As a merge that keeps both versions would. Pitfalls may share a test; examples share lines of recipes."""
    for page in (ROOT / "CHANGELOG.md", *DOCUMENTS):
        text = re.sub(r"^```.*?^```", "", read_text(page), flags=re.DOTALL | re.MULTILINE)
        lines = Counter(line.strip() for line in text.splitlines() if len(line) > 60 and "::test_" not in line)
        starts = Counter(re.findall(r"^- (\*\*[^*]+:\*\*)", text, re.MULTILINE))
        twice = [what for what, count in (lines + starts).items() if count > 1 and not what.startswith("|--")]
        assert not twice, f"{identify(page)}: {twice[:3]}"
    changelog = read_text(ROOT / "CHANGELOG.md")
    assert max(len(version.splitlines()) for version in changelog.split("\n## ")) <= 60
