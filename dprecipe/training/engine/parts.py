"""The one size of a run's parts, on devices where they have one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

from torch import Tensor, nn

from dprecipe.training.engine.planning import MIN_PART, plan_of
from dprecipe.training.engine.rounding import Reserve
from dprecipe.training.engine.sizes import max_stored_numbers, one_size, size_for
from dprecipe.training.engine.taps import Unplanned, trained_of

Loss = Callable[[Tensor, Tensor], Tensor]
MIXED = 32
"""The number of units in a part where they have several shapes, each of which has its own parts."""


@final
class Parts:
    """The number of records that go through the model at once, for each of their shapes: fixed once, from public
    numbers."""

    def __init__(self, model: nn.Module, loss: Loss, expected: float, *, mixed: bool = False) -> None:
        """`expected`: records of a batch of this process; `mixed`: they are of several shapes."""
        self._model, self._loss = model, loss
        self.expected, self._mixed = expected, mixed
        self._sizes: dict[Any, int] = {}

    def size(self, features: Tensor, labels: Tensor, max_records: int) -> int | None:
        """Returns the size for records like these, if at most `max_records` rows may go through the model at once; a
        record has
        one row for each of its labels. `None`: parts may be of any size.
        """
        if not one_size(features.device) or not len(labels):
            return None
        key = (features.shape[1:], features.dtype, features.device, labels.shape[1:], max_records)
        if key not in self._sizes:
            self._sizes[key] = self._size(features, labels, max(1, max_records // labels[0].numel()))
        return self._sizes[key]

    def block_size(self, count: int) -> int:
        """Returns the median, over parts of `count` records, of how many may be added up in single precision
        (`Reserve`)."""
        reserve, parts = Reserve(math.ceil(self.expected)), max(1, math.ceil(self.expected / count))
        return sorted(reserve.take_block(count) for _ in range(parts))[parts // 2]

    def _size(self, features: Tensor, labels: Tensor, max_records: int) -> int:
        trained = sum(parameter.numel() for parameter in trained_of(self._model).values())
        storable = max(MIN_PART, max_stored_numbers(features.device) // max(1, trained))
        size = self._of(max_records)
        try:
            plan = plan_of(self._model, self._loss, features, labels, size, self.block_size(size))
        except Unplanned:  # gradients of single records, all held at once
            return self._of(min(max_records, storable))
        return self._of(min(max_records, plan.max_records))

    def _of(self, max_records: int) -> int:
        return min(MIXED, max_records) if self._mixed else size_for(self.expected, max_records)
