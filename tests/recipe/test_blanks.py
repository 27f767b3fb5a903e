"""Blanks of a recipe: each is found, also where a text may stand."""

from __future__ import annotations

import pytest

from dprecipe.faults import RecipeError
from dprecipe.recipe.blanks import is_blank
from dprecipe.recipe.read import read_text
from dprecipe.recipe.starters import make_starter

TEXT = make_starter("dpsgd", "csv", "s")


def find(text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        read_text(text)
    assert all(map(is_blank, caught.value.findings))
    return [finding.path for finding in caught.value.findings]


def test_a_blank_where_a_text_may_stand_is_found() -> None:
    assert find(TEXT.replace("name: s", "name: FILL_IN")) == ["name"]
    columns = TEXT.replace(
        "{kind: numeric, min: 0, max: 120}", "{kind: date, format: FILL_IN, min: FILL_IN, max: 2024-01-01}"
    )
    assert find(columns) == ["data.train.columns.age.format", "data.train.columns.age.min"]


def test_a_blank_within_a_list_is_found() -> None:
    assert find(TEXT.replace("[red, green, blue]", "[red, FILL_IN]")) == ["data.train.columns.colour.values.1"]


def test_a_text_in_quotes_is_no_blank() -> None:
    read_text(TEXT.replace("[red, green, blue]", '[red, "FILL_IN"]'))
