"""Pages of reproductions: each recipe of a paper is on one, and what costs no training is what a plan says."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from dprecipe.planning.make import plan
from dprecipe.recipe.read import read

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "recipes" / "papers"
PAGES = {
    path.stem: path.read_text("utf-8") for path in sorted((ROOT / "docs" / "project" / "reproduction").glob("*.md"))
}
ROW = re.compile(r"^\| `([\w.-]+)` \|(?: `([^`]+)`)? \|.*\| (\d+\.\d+) \|$", re.MULTILINE)
ROWS = [row for text in PAGES.values() for row in ROW.findall(text)]
"""Recipe, what is set in it, and ε: of the tables whose last column is "ε here"."""
SLOW = ("nasr2020", "training.epochs=400")


def make_case(name: str, override: str, printed: str) -> ParameterSet:
    slow = any(word in f"{name} {override}" for word in SLOW)
    return pytest.param(name, override, printed, id=f"{name} {override}", marks=[pytest.mark.slow] if slow else [])


def test_every_recipe_of_a_paper_is_on_a_page() -> None:
    text = "".join(PAGES.values())
    names = [path.stem for path in PAPERS.glob("*.yaml")]
    assert len(names) >= 10
    assert [name for name in names if f"`{name}`" not in text and f"{name}.yaml" not in text] == []


def test_every_recipe_that_a_page_names_exists() -> None:
    named = [(page, name) for page, text in PAGES.items() for name in re.findall(r"recipes/([\w./-]+\.yaml)", text)]
    assert len(named) >= 10
    assert [(page, name) for page, name in named if not (ROOT / "recipes" / name).is_file()] == []


def test_every_table_without_training_is_found() -> None:
    headings = sum(text.count("| ε here |") for text in PAGES.values())
    assert headings >= 3
    assert len(ROWS) >= 2 * headings


@pytest.mark.parametrize(("name", "override", "printed"), [make_case(*row) for row in ROWS])
def test_what_a_page_says_of_a_plan_is_what_the_plan_says(name: str, override: str, printed: str) -> None:
    digits = len(printed.partition(".")[2])
    epsilon = plan(read(PAPERS / f"{name}.yaml", [override] if override else [])).guarantee.epsilon
    assert math.ceil(epsilon * 10**digits) / 10**digits == float(printed)
