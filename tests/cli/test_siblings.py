"""Recipes that differ in hyper-parameters alone."""

from __future__ import annotations

from pathlib import Path

from dprecipe.cli.siblings import find_siblings
from dprecipe.cli.validate import validate
from dprecipe.recipe.read import read

RECIPES = Path(__file__).parents[2] / "recipes"


def paths_of(*overrides: str) -> list[str]:
    base = RECIPES / "quickstart.yaml"
    return [finding.path for finding in find_siblings([read(base), *(read(base, (each,)) for each in overrides)])]


def test_other_values_of_the_same_keys_are_told() -> None:
    assert paths_of("training.optimizer.lr=1.0") == ["training.optimizer.lr"]
    assert paths_of("training.steps=80", "mechanism.clip.norm=0.4") == ["training.steps", "mechanism.clip.norm"]


def test_other_data_budgets_models_and_the_same_recipe_again_are_not() -> None:
    assert paths_of("name=other", "runtime.device=cpu", "release.report=false") == []
    assert paths_of("budget.epsilon=2.0", "data.size=1437", "model={kind: logistic_regression}") == []
    assert paths_of("model.hidden=[48, 48]", "training.average=null") == []


def test_a_recipe_with_tuning_has_said_what_it_tries() -> None:
    both = [read(RECIPES / "quickstart.yaml"), read(RECIPES / "tuned-digits.yaml")]
    assert list(find_siblings(both)) == []


def test_validate_warns_of_the_files_that_it_is_given(tmp_path: Path, capsys: object) -> None:
    text = (RECIPES / "quickstart.yaml").read_text("utf-8")
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    (tmp_path / "b.yaml").write_text(text.replace("lr: 2.2", "lr: 1.1"), "utf-8")
    assert validate([tmp_path]) == 0
    out = capsys.readouterr().out  # type: ignore[attr-defined]
    assert "warning[P188] training.optimizer.lr" in out
    assert "a.yaml" in out
