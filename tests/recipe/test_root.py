"""A recipe with values replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.recipe.read import read
from dprecipe.recipe.root import PointError, set_values

RECIPES = Path(__file__).parents[2] / "recipes"


def test_values_are_set_at_their_paths_and_blocks_begun() -> None:
    recipe = read(RECIPES / "quickstart.yaml").recipe
    result = set_values(recipe, {"model.hidden.0": 7, "training.optimizer.lr": 0.25, "release.report": False})
    assert result.model.hidden == (7,)  # type: ignore[union-attr]
    assert result.training.optimizer.lr == 0.25  # type: ignore[union-attr]
    assert result.release.report is False
    assert set_values(result, {"model.hidden.0": 96, "training.optimizer.lr": 2.2, "release.report": True}) == recipe


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("training.optimizer.rate", 1.0, "no such key"),
        ("training.nothing.at.all", 1.0, "no such key"),
        ("training.optimizer.lr.deeper.still", 1.0, "no such key"),
        ("training.optimizer.lr", -1.0, "greater than 0"),
        ("training.optimizer.lr", "fast", "valid number"),
        ("model.hidden.3", 8, "no item"),
    ],
)
def test_what_makes_no_recipe_is_refused(path: str, value: object, why: str) -> None:
    with pytest.raises(PointError, match=why):
        set_values(read(RECIPES / "quickstart.yaml").recipe, {path: value})
