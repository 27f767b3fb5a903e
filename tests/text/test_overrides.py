"""`--set a.b=c`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.faults import RecipeError
from dprecipe.recipe.read import read
from dprecipe.text.merge import read_overrides
from dprecipe.text.tree import to_plain
from tests.text.reading import show

GOLDEN = Path(__file__).parents[1] / "golden"
BAD = [
    "training.epochs",
    "=3",
    ".epochs=3",
    "training..epochs=3",
    " budget.epsilon=3",
    "budget.delta=1e-5",
    "budget.delta=1e-6",
    "runtime={seed: 1}",
    "runtime.seed=2",
    "extends=other.yaml",
    "data.preprocess.3.flatten={}",
    "budgt.epsilon=1",
    "training.optimizer.lr=.5",
    "model.hidden=[1, 2",
    "name='two",
    "mechanism.clip.norm=.inf",
    "mechanism.noise.family=sech\n---\n3",
]


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a.b=c", {"a": {"b": "c"}}),
        ("budget.epsilon=1e-1", {"budget": {"epsilon": 0.1}}),
        ("name=a=b", {"name": "a=b"}),
        ("a=no", {"a": "no"}),
        ("a=", {"a": None}),
        ("a='1'", {"a": "1"}),
        ("a=[1, {b: 2}]", {"a": [1, {"b": 2}]}),
        ("a=true", {"a": True}),
    ],
)
def test_values_are_read_by_the_rules_of_the_recipe(override: str, value: object) -> None:
    tree, findings = read_overrides([override])
    assert not findings
    assert to_plain(tree) == value


def test_golden_findings(update_golden: bool) -> None:
    """Every finding points into the override it is about. Shows Y130, Y131 and Y132."""
    with pytest.raises(RecipeError) as caught:
        read(GOLDEN / "recipes" / "fine.yaml", BAD)
    text = show(caught.value.findings, caught.value.texts).replace(f"{GOLDEN}/", "")
    if update_golden:
        (GOLDEN / "overrides.out").write_text(text, encoding="utf-8")
    assert text == (GOLDEN / "overrides.out").read_text("utf-8")


def test_items_of_lists_can_be_overridden(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    text = (GOLDEN / "recipes" / "fine.yaml").read_text("utf-8")
    recipe.write_text(text.replace("  size: 1438", "  size: 1438\n  preprocess:\n    - scale: {mean: 0.5, std: 1}"))
    loaded = read(recipe, ["data.preprocess.0.scale.mean=0.25"])
    (step,) = loaded.recipe.data.preprocess
    assert step.scale is not None
    assert (step.scale.mean, step.scale.std) == (0.25, 1.0)
    assert loaded.origin("data.preprocess.0.scale.mean") == "--set #1"


def test_a_changed_kind_replaces_the_block() -> None:
    loaded = read(GOLDEN / "recipes" / "fine.yaml", ["model.kind=logistic_regression"])
    assert loaded.recipe.model.kind == "logistic_regression"
