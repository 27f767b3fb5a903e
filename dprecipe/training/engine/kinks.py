"""Effects of rounding at the kinks of a network (of a ReLU, of a pool), where a gradient jumps."""

from __future__ import annotations

from torch import Tensor

MOVED = 1e-6
"""The relative change of a record's numbers: single precision rounds about as much after some layers."""
KINKS = 4.0
"""Another correct computation may differ by this many times what `MOVED` moves a gradient, or a sum of gradients."""
MAX_DIFFERENCE = 0.1
"""An upper limit on that difference, relative to the size."""


def move_records(features: Tensor) -> Tensor:
    """Returns the records (N, …), each number moved by `MOVED` of the one before it: about what rounding does."""
    return features + MOVED * features.roll(1, -1)


def limit_difference(moved: float) -> float:
    """Returns the allowed difference of another correct computation, where moved records change this one by `moved`;
    both relative."""
    return min(KINKS * moved, MAX_DIFFERENCE)
