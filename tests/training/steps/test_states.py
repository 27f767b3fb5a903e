"""Nested states as flat ones, and what differs between two."""

from __future__ import annotations

import torch

from dprecipe.training.steps.states import find_differences, flatten_state

STATE = {"steps": 3, "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "groups": [{"lr": 0.5}]}, "empty": {}}


def test_values_are_named_by_their_path() -> None:
    assert list(flatten_state(STATE)) == ["steps", "optimizer.state.0.step", "optimizer.groups.0.lr"]


def test_what_differs_is_named() -> None:
    one = {"a": torch.tensor([1.0, float("nan")]), "b": 1, "c": None, "d": torch.ones(2)}
    assert find_differences(one, dict(one)) == []
    other = {"a": torch.tensor([1.0, float("nan")]), "b": 1.0, "d": torch.ones(2, dtype=torch.float64), "e": 0}
    assert find_differences(one, other) == ["b", "c", "d", "e"]
    assert find_differences({"a": torch.zeros(2)}, {"a": torch.zeros(2, device="meta")}) == ["a"]
    assert find_differences({"a": torch.tensor(float("inf"))}, {"a": torch.tensor(torch.finfo().max)}) == ["a"]
