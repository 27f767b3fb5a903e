"""Which of two values protects more."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.recipe.stricter import find_exactly, is_stricter, settle_double, show_value
from dprecipe.text.tree import Mapping, Node
from tests.text.reading import load


def node(text: str) -> Node:
    tree = load(f"a: {text}\n", "a.yaml")
    assert isinstance(tree, Mapping)
    return tree.entries["a"].value


@pytest.mark.parametrize(
    ("path", "value", "other", "stricter"),
    [
        ("budget.epsilon", 1, 3.0, True),
        ("budget.epsilon", 3.0, 1, False),
        ("budget.epsilon", 3.0, "auto", True),
        ("budget.epsilon", "auto", 3.0, False),
        ("budget.delta", 1e-7, 1e-6, True),
        ("mechanism.clip.norm", 2.0, 1.0, False),
        ("mechanism.noise.multiplier", 2.0, 1.0, True),
        ("mechanism.noise.multiplier", "auto", 1.0, False),
        ("mechanism.noise.multiplier", {"schedule": "linear"}, "auto", None),
        ("data.unit", "patient", "record", True),
        ("data.unit", "record", {"column": "patient"}, False),
        ("data.test.access", "public", "private_internal", False),
        ("training.epochs", 3, 4, None),
        ("budget.epsilon", True, 3.0, None),
        ("budget.epsilon", "0.5", 8, None),
        ("mechanism.noise.multiplier", 0.1, {"schedule": "linear", "from": 5.0, "to": 9.0}, None),
        ("mechanism.clip.norm", 5, {"schedule": "linear", "from": 0.5, "to": 0.1}, None),
        ("budget.neighbouring", "replace_one", "add_or_remove_one", None),
    ],
)
def test_the_stricter_of_two(path: str, value: Any, other: Any, stricter: bool | None) -> None:
    assert is_stricter(path, value, other) is stricter


def test_the_stricter_value_stays() -> None:
    tree = load("budget: {epsilon: 3.0}\ntraining: {epochs: 10}\n", "a.yaml")
    assert isinstance(tree, Mapping)
    assert settle_double(tree, "budget.delta", node("1e-6")) is None
    assert settle_double(tree, "budget.epsilon", node("3")) == "remove it: budget.epsilon says the same"
    assert settle_double(tree, "budget.epsilon", node("1.50")) == (
        "set budget.epsilon to 1.50, the stricter of the two, and remove it here"
    )
    assert settle_double(tree, "budget.epsilon", node("9")) == (
        "remove it: budget.epsilon is 3.0, the stricter of the two"
    )
    assert settle_double(tree, "training.epochs", node("9")) == "remove it: training.epochs is 10 already"
    assert settle_double(tree, "training.steps", node("9")) == "remove it: training.epochs is 10 already"
    assert find_exactly(tree, "training.steps") is None


@pytest.mark.parametrize("text", ["3.10", "1e3", "[0.50, {a: 1.0}]", "{b: ~}", "'3.10'", "icu"])
def test_values_are_shown_as_written(text: str) -> None:
    assert show_value(node(text)) == text.replace("'", '"')


def test_a_long_value_is_not_shown() -> None:
    assert show_value(node("[" + "surgery, " * 10 + "icu]")) == ""


@pytest.mark.parametrize(
    ("path", "there", "value"),
    [
        ("budget.epsilon", "budget: {epsilon: '0.5'}", "8"),
        ("budget.neighbouring", "budget: {neighbouring: add_or_remove_one}", "replace_one"),
        ("mechanism.noise.multiplier", "mechanism: {noise: {multiplier: {schedule: linear, from: 5, to: 9}}}", "0.1"),
    ],
)
def test_what_cannot_be_ranked_is_the_authors_to_choose(path: str, there: str, value: str) -> None:
    tree = load(f"{there}\n", "a.yaml")
    assert isinstance(tree, Mapping)
    remedy = settle_double(tree, path, node(value))
    assert remedy == f"keep the one that protects more, as {path}, and remove the other"
