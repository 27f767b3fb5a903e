"""What the documents show is true: recipes are valid, Python runs, commands and their flags exist, links resolve."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from dprecipe.cli.main import app
from dprecipe.faults import Finding
from dprecipe.nonprivate.plan import check as check_public
from dprecipe.planning import rules
from dprecipe.recipe.read import LoadedPublic, read_any

ROOT = Path(__file__).parents[2]
FINDINGS = ROOT / "docs" / "reference" / "findings"
DOCS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")]),
    FINDINGS / "README.md",
    *sorted((ROOT / "dprecipe").rglob("README.md")),
]
PAGES = sorted(path for path in FINDINGS.glob("*.md") if path.name != "README.md")
ROOTS = (".github", "docs", "examples", "tests")
LINKED = sorted({*DOCS, *(path for name in ROOTS for path in (ROOT / name).rglob("*.md"))})
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXECUTED = (
    "README.md",
    "docs/tutorials/guide.md",
    "docs/tutorials/own-data.md",
    "docs/how-to/using.md",
    "docs/how-to/lightning.md",
    "docs/explanation/dpsgd.md",
    "docs/reference/models.md",
    "docs/how-to/imbalance.md",
    "docs/how-to/several.md",
)
LONG = tuple(name for name in EXECUTED if name != "README.md")
"""Documents whose examples take seconds, or a minute."""
MAX_STEPS = 60
"""An executed example may train for no longer than this."""


def list_fences(path: Path, language: str) -> list[str]:
    return [text for tag, text in FENCE.findall(path.read_text(encoding="utf-8")) if tag == language]


def list_recipes(path: Path) -> list[str]:
    return [text for text in list_fences(path, "yaml") if text.startswith("recipe:")]


def check_recipe(text: str) -> list[Finding]:
    loaded = read_any("example.yaml", open_text={"example.yaml": text}.__getitem__)
    if isinstance(loaded, LoadedPublic):
        return check_public(loaded.recipe)
    return rules.check(loaded.recipe)


def test_there_are_examples() -> None:
    assert sum(len(list_recipes(path)) for path in DOCS) >= 3
    assert all(list_fences(ROOT / name, "python") for name in EXECUTED)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_recipes_are_valid(path: Path) -> None:
    for text in list_recipes(path):
        assert check_recipe(text) == [], text
    for text in list_fences(path, "yaml"):
        yaml.safe_load(text)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in EXECUTED]
)
def test_python_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fences of a document, one after the other, beside the recipes that it shows."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    for text in list_recipes(ROOT / name):
        (tmp_path / f"{yaml.safe_load(text)['name']}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    import dprecipe

    real = dprecipe.run

    def short(plan: Any, **arguments: Any) -> Any:
        assert plan.length.steps <= MAX_STEPS
        return real(plan, **arguments)

    monkeypatch.setattr(dprecipe, "run", short, raising=False)
    if name.endswith("lightning.md"):  # Lightning's own warnings: of its libraries, and of a checkpoint's moment
        warnings.simplefilter("ignore")
    names: dict[str, Any] = {}
    for number, code in enumerate(list_fences(ROOT / name, "python")):
        exec(compile(code, f"{name}, Python fence {number + 1}", "exec"), names)  # the documents are ours


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_python_compiles(path: Path) -> None:
    for code in list_fences(path, "python"):
        compile(code, path.name, "exec")


def read_unfenced(path: Path) -> str:
    """A document without its fences."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def list_commands(path: Path) -> Iterator[str]:
    """Every command line of ours that a document shows: after a prompt, in a fence, or as inline code."""
    text = path.read_text(encoding="utf-8")
    for language, block in FENCE.findall(text):
        if language in ("console", "text"):
            yield from re.findall(r"^\$ (dprecipe .*)$", block, re.MULTILINE)
    for block in re.findall(r"^```\n(.*?)^```$", FENCE.sub("", text), re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^(dprecipe .*)$", block, re.MULTILINE)
    yield from re.findall(r"`(dprecipe [a-z][^`]*)`", read_unfenced(path))


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_commands_and_flags_exist(path: Path) -> None:
    root: Any = typer.main.get_command(app)
    for line in list_commands(path):
        command, words = root.load_command(line.split()[1].rstrip(",.")), 2
        if hasattr(command, "commands"):  # a group
            command, words = command.load_command(line.split()[2].rstrip(",.")), 3
        flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)) <= flags | {"--help", "--debug"}, line
        arguments = shlex.split(line.replace("\\|", "|"), comments=True)[words:]
        if arguments and not re.search(r"[\[…]", line):  # else a pattern, in the contract's own notation
            command.make_context(command.name, arguments)


def test_the_set_up_is_two_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "```\nmake demo\n```" in README
    assert "`make test`" in README
    assert {"demo", "test"} <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))


def test_the_contract_lists_every_command() -> None:
    contract = (ROOT / "docs" / "reference" / "contract.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| command \|.*?\n\n", contract, re.MULTILINE | re.DOTALL)[0]
    listed = set(re.findall(r"^\| `dprecipe (\w+)", table, re.MULTILINE))
    assert len(listed) > 20
    assert listed == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_ci_runs_what_contributors_are_asked_to_run() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (listed,) = (text.split("\n") for text in re.findall(r"what CI runs:\n\n```\n(.*?)\n```", page, re.DOTALL))
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^make .*$", script, re.MULTILINE) == listed


def test_every_target_of_the_makefile_has_its_line_of_help() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(re.findall(r"^# make ([\w-]+) +\S", makefile, re.MULTILINE)) == set(phony.split())


def make_slug(heading: str) -> str:
    """The anchor that a heading gets: lower case, no punctuation, hyphens for blanks."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("path", LINKED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", read_unfenced(path)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(make_slug, headings), target


def list_properties(schema: Any) -> Iterator[str]:
    """Every key that the schema of a recipe knows."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield from schema["properties"]
        for value in schema.values():
            yield from list_properties(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from list_properties(value)


def test_every_key_of_a_recipe_is_explained() -> None:
    schema = json.loads((ROOT / "schemas" / "recipe.schema.json").read_text(encoding="utf-8"))
    pages = (ROOT / "docs" / "reference" / name for name in ("recipe.md", "data.md"))
    code = " ".join(re.findall(r"`([^`]+)`", " ".join(map(read_unfenced, pages))))
    keys = set(list_properties(schema))
    assert len(keys) > 60
    assert keys - set(re.findall(r"\w+", code)) == set()
