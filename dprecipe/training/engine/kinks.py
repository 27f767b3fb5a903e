"""What rounding may do at the kinks of a network (of a ReLU, of a pool), where a gradient jumps."""

from __future__ import annotations

from torch import Tensor

MOVED = 1e-6
"""Of a record's numbers: what passes through some layers in single precision is rounded by about as much."""
KINKS = 4.0
"""How many times as much as that moves a gradient, or a sum of them, another correct computation may differ."""
MAX_DIFFERENCE = 0.1
"""But by no more than this, of its size."""


def move_records(features: Tensor) -> Tensor:
    """The records (N, …), each number of theirs moved by `MOVED` of the one before it: about what rounding does."""
    return features + MOVED * features.roll(1, -1)


def limit_difference(moved: float) -> float:
    """How far another correct computation may differ where moved records change this one by `moved`, both relative."""
    return min(KINKS * moved, MAX_DIFFERENCE)
