"""Comparison of the states of noisy steps: nested dictionaries and lists of tensors and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dprecipe.training.steps.step_failures import are_equal


def flatten_state(state: Any, name: str = "") -> dict[str, Any]:
    """Returns the tensors and numbers of a state, by their path: `optimizer.state.0.step`."""
    if isinstance(state, Mapping):
        parts = list(state.items())
    elif isinstance(state, list | tuple):
        parts = list(enumerate(state))
    else:
        return {name: state}
    flat: dict[str, Any] = {}
    for part, inner in parts:
        flat |= flatten_state(inner, f"{name}.{part}" if name else str(part))
    return flat


def find_differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Returns the names of values that differ, or that only one has; NaN equals itself."""
    names = dict.fromkeys((*one, *other))
    return [name for name in names if name not in one or name not in other or not _are_same(one[name], other[name])]


def _are_same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.device == other.device and are_equal(one.detach(), other.detach())
    return type(one) is type(other) and bool(one == other)
