"""Laying trees over each other: blocks merge, all else replaces, another kind replaces its block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dprecipe.language.base import Block
from dprecipe.recipe.root import Recipe
from dprecipe.recipe.vocabulary import Expect, list_keys
from dprecipe.text.merge import DEFAULTS, TAGS, overlay_trees, read_overrides
from dprecipe.text.tree import to_plain
from tests.text.reading import load


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
