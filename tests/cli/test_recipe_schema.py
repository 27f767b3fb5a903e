"""The schema of recipes in an editor: what completes, explains and marks a recipe. Its form, and the YAML language
server's own answers, where that is installed (npm install --global yaml-language-server)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dprecipe.cli.recipe_schema import ADDRESS, PAGE, recipe_schema
from dprecipe.contract.table import MECHANISMS
from dprecipe.recipe.read import read_text
from tests.language_server import PROGRAM, LanguageServer, find_server, language_server
from tests.schemas import validator_of

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "schemas" / "recipe.schema.json"
QUICKSTART = (ROOT / "recipes" / "quickstart.yaml").read_text(encoding="utf-8").partition("\n")[2]


def list_blocks(node: Any) -> Iterator[dict[str, Any]]:
    """Every block of a schema; values that a recipe may have are none."""
    if isinstance(node, dict):
        yield node
        node = [value for key, value in node.items() if key not in ("default", "defaultSnippets", "examples")]
    for value in node if isinstance(node, list) else ():
        yield from list_blocks(value)


def test_every_explanation_leads_to_a_section_of_the_page() -> None:
    page = (ROOT / "docs" / "reference" / "recipe.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    sections = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    linked = set()
    for block in list_blocks(recipe_schema()):
        if isinstance(block.get("description"), str):
            text, _, link = block["markdownDescription"].partition("\n\n[")
            assert text == block["description"].partition("\n\n[")[0]
            linked.add(re.fullmatch(rf"[\w ,]+\]\({re.escape(PAGE)}#(.*)\)", link)[1])  # type: ignore[index]
    assert linked <= sections
    assert {"budget", "training", "kind-pate", "kind-none", "mechanism", "top-level"} <= linked


@pytest.mark.slow
def test_it_has_a_name_and_whole_recipes_as_snippets() -> None:
    schema = recipe_schema()
    assert schema["$id"] == ADDRESS
    bodies = [snippet["body"] for snippet in schema["defaultSnippets"]]
    assert [body["mechanism"]["kind"] for body in bodies] == list(MECHANISMS)
    for body in (*bodies, *schema["examples"]):
        validator_of(recipe_schema).validate(body)
        read_text(json.dumps(body))


def test_the_entry_for_schemastore_names_it_and_the_files_of_the_hook() -> None:
    page = (ROOT / "docs" / "how-to" / "editors.md").read_text(encoding="utf-8")
    (entry,) = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if "fileMatch" in text)
    assert entry["url"] == ADDRESS
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert all(re.search(hook["files"], pattern.replace("*", "a")) for pattern in entry["fileMatch"])


@pytest.fixture(scope="module")
def editor() -> Iterator[LanguageServer]:
    program = find_server()
    if program is None:
        pytest.skip(f"{PROGRAM} is not installed")
    with language_server(program, SCHEMA) as server:
        yield server


def test_kinds_are_completed_and_explained(editor: LanguageServer) -> None:
    editor.open("recipe: dprecipe/v1\nmechanism:\n  kind: ")
    kinds = editor.complete()
    assert set(kinds) == set(MECHANISMS)
    assert "Abadi" in kinds["dpsgd"]
    editor.open("recipe: dprecipe/v1\nmechanism:\n  kind: dpsgd\n  noise:\n    family: ")
    assert "gaussian" in editor.complete()


def test_keys_are_completed(editor: LanguageServer) -> None:
    editor.open("recipe: dprecipe/v1\nbudget:\n  ")
    keys = editor.complete()
    assert {"epsilon", "delta", "neighbouring", "accountant"} <= set(keys)
    assert f"({PAGE}#budget)" in keys["delta"]
    editor.open("recipe: dprecipe/v1\nbudget:\n  epsilon: ")
    assert "auto" in editor.complete()
    editor.open("")
    assert {"dprecipe: dpsgd", "mechanism", "budget"} <= set(editor.complete())


def test_a_hover_explains_and_links(editor: LanguageServer) -> None:
    assert editor.open(QUICKSTART) == []
    multiplier = editor.hover("multiplier")
    assert "scale of the noise, divided by the clip norm; `auto`: solved" in multiplier
    assert f"({PAGE}#kind-dpsgd)" in multiplier
    epsilon = editor.hover("epsilon:")
    assert "#### Epsilon\n" in epsilon
    assert f"({PAGE}#budget)" in epsilon
    assert "`pate`: PATE" in editor.hover("dpsgd\n")
    assert "#### Mechanism" in editor.hover("mechanism:")


def test_mistakes_are_marked_where_they_are(editor: LanguageServer) -> None:
    lines = QUICKSTART.splitlines()
    line = {
        key: next(i for i, text in enumerate(lines, 1) if text.lstrip().startswith(key)) for key in ("kind", "budget")
    }
    found = editor.open(QUICKSTART.replace("epsilon:", "epsilom:").replace("kind: dpsgd", "kind: dpsdg"))
    assert (line["budget"], "Property epsilom is not allowed.") in found
    assert any(at == line["kind"] and '"dpsgd"' in message for at, message in found)
