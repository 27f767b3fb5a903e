"""Laying trees over each other: blocks merge, all else replaces, another kind replaces its block."""

from __future__ import annotations

import pytest

from dprecipe.text.load import load
from dprecipe.text.merge import overlay
from dprecipe.text.tree import plain


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
    ],
)  # fmt: skip
def test_overlay(base: str, over: str, merged: object) -> None:
    tree, findings = overlay(load(base, "base"), load(over, "over"))
    assert plain(tree) == merged
    assert not findings


def test_values_keep_the_place_they_were_written_at() -> None:
    tree, _ = overlay(load("{a: {x: 1, y: 2}, z: 0}", "base"), load("{a: {y: 3}}", "over"))
    from dprecipe.text.tree import find

    assert {path: find(tree, path)[1].file for path in ("a", "a.x", "a.y", "z")} == {
        "a": "base",
        "a.x": "base",
        "a.y": "over",
        "z": "base",
    }
