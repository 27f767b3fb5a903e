"""A Python traceback of a fault ends with what the user can do."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import dprecipe
from dprecipe.faults import DataFault, Fault, Finding, Place, PlanRefused, RecipeError, UsageFault
from tests.recipe_texts import SMALL

FINDING = Finding("P101", "too much", "set it lower", "budget.epsilon", Place("recipe.yaml", 8, 5))


def show(fault: Fault) -> str:
    return "".join(traceback.format_exception(fault))


@pytest.mark.parametrize("kind", [RecipeError, PlanRefused])
def test_findings_are_shown_with_place_and_remedy(kind: type[RecipeError] | type[PlanRefused]) -> None:
    said = show(kind([FINDING, FINDING]))
    assert said.count("error[P101] budget.epsilon (recipe.yaml:8:5)\n  = set it lower") == 2


def test_a_remedy_is_shown_and_what_is_private_is_not() -> None:
    said = show(DataFault("x.csv: no such file", "check the path\nverified", "row 7"))
    assert said.endswith("x.csv: no such file\n  = check the path\\u000averified\n")
    assert "row 7" not in said
    assert show(UsageFault("wrong")).endswith("wrong\n")


def test_a_recipe_that_is_wrong_says_where_and_what_to_do(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(SMALL.replace("epsilon: 2.0", "epsilon: -2.0"), encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        dprecipe.load(recipe)
    assert f"({recipe}:10:19)\n  = " in show(caught.value)
