"""Laying trees over each other: blocks merge, all else replaces, another kind replaces its block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dprecipe.faults import RecipeError
from dprecipe.language.base import Block
from dprecipe.recipe.read import read
from dprecipe.recipe.root import Recipe
from dprecipe.recipe.vocabulary import Expect, list_keys
from dprecipe.text.merge import DEFAULTS, TAGS, overlay_trees, read_overrides
from dprecipe.text.tree import to_plain
from tests.text.reading import load, show


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ("{a: 1, b: 2}", "{b: 3, c: 4}", {"a": 1, "b": 3, "c": 4}),
        ("{a: {x: 1, y: 2}}", "{a: {y: 3}}", {"a": {"x": 1, "y": 3}}),
        ("{a: [1, 2, 3]}", "{a: [9]}", {"a": [9]}),
        ("{a: {x: 1}}", "{a: 5}", {"a": 5}),
        ("{a: 5}", "{a: {x: 1}}", {"a": {"x": 1}}),
        ("{m: {kind: mlp, hidden: [3]}}", "{m: {kind: cnn, preset: lenet}}", {"m": {"kind": "cnn", "preset": "lenet"}}),
        ("{m: {kind: mlp, hidden: [3]}}", "{m: {kind: mlp, activation: relu}}",
         {"m": {"kind": "mlp", "hidden": [3], "activation": "relu"}}),
        ("{n: {family: student_t, df: 3, multiplier: 1}}", "{n: {family: gaussian, multiplier: 2}}",
         {"n": {"family": "gaussian", "multiplier": 2}}),
        ("{t: {source: idx, images: a}}", "{t: {source: digits}}", {"t": {"source": "digits"}}),
        ("{s: {scheme: poisson, batch_size: 3}}", "{s: {scheme: full_batch}}", {"s": {"scheme": "full_batch"}}),
        ("{m: {kind: a, n: {kind: b, x: 1}}}", "{m: {n: {kind: c}}}", {"m": {"kind": "a", "n": {"kind": "c"}}}),
        ("{a: {x: 1}}", "{a: null}", {"a": None}),
        ("{a: {x: 1}}", "{a: {}}", {"a": {"x": 1}}),
        ("{c: {norm: 1}}", "{c: {mode: per_layer, norms: [1]}}", {"c": {"mode": "per_layer", "norms": [1]}}),
        ("{c: {norm: 1}}", "{c: {mode: flat}}", {"c": {"norm": 1, "mode": "flat"}}),
        ("{c: {mode: flat, norm: 1}}", "{c: {norm: 2}}", {"c": {"mode": "flat", "norm": 2}}),
    ],
)  # fmt: skip
def test_overlay(base: str, over: str, merged: object) -> None:
    tree, findings = overlay_trees(load(base, "base"), load(over, "over"))
    assert to_plain(tree) == merged
    assert not findings


@pytest.mark.parametrize(
    ("override", "clip"),
    [
        ("c={mode: per_layer, norms: [1]}", {"mode": "per_layer", "norms": [1]}),
        ("c={norm: 2}", {"norm": 2, "extra": 2}),
        ("c={mode: flat}", {"norm": 1, "extra": 2, "mode": "flat"}),
        ("c.mode=automatic", {"norm": 1, "extra": 2, "mode": "automatic"}),
        ("c.norm=3", {"norm": 3, "extra": 2}),
        ("c.norm={schedule: linear}", {"norm": {"schedule": "linear"}, "extra": 2}),
    ],
)
def test_an_override_of_another_kind_replaces_the_block(override: str, clip: object) -> None:
    over, findings = read_overrides([override])
    tree, wrong = overlay_trees(load("{c: {norm: 1, extra: 2}}", "base"), over)
    assert to_plain(tree) == {"c": clip}
    assert not (*findings, *wrong)


def test_every_kind_that_need_not_be_written_is_known_to_the_merge() -> None:
    """A block that states a kind of its own replaces one that is silent: then the silent one's kind must be known."""
    defaults = {
        key: field.default
        for known in every_block(Expect(blocks=(Recipe,)))
        for key, field in known.model_fields.items()
        if key in TAGS and not field.is_required()
    }
    assert defaults == DEFAULTS


def every_block(form: Expect, seen: frozenset[type[Block]] = frozenset()) -> Iterator[type[Block]]:
    for block in form.blocks:
        if block not in seen:
            yield block
            for inside in list_keys(block).values():
                yield from every_block(inside, seen | {block})
    for inside in (form.items, form.values):
        if inside is not None:
            yield from every_block(inside, seen)


def test_values_keep_the_place_they_were_written_at() -> None:
    tree, _ = overlay_trees(load("{a: {x: 1, y: 2}, z: 0}", "base"), load("{a: {y: 3}}", "over"))
    from dprecipe.text.tree import find_node

    assert {path: find_node(tree, path)[1].file for path in ("a", "a.x", "a.y", "z")} == {
        "a": "base",
        "a.x": "base",
        "a.y": "over",
        "z": "base",
    }


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
