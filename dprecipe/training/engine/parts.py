"""The one size of a run's parts, on devices where they have one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

from torch import Tensor, nn

from dprecipe.training.engine.planning import FEW, plan_of
from dprecipe.training.engine.reserve import Reserve
from dprecipe.training.engine.sizes import numbers_kept, one_size, size_for
from dprecipe.training.engine.taps import Unplanned, trained_of

Loss = Callable[[Tensor, Tensor], Tensor]
MIXED = 32
"""Units of a part where they are of several shapes, each of which has parts of its own."""


@final
class Parts:
    """How many records go through the model at once, for each shape of theirs: made once, from public numbers."""

    def __init__(self, model: nn.Module, loss: Loss, expected: float, *, mixed: bool = False) -> None:
        """`expected`: records of a batch of this process; `mixed`: they are of several shapes."""
        self._model, self._loss = model, loss
        self.expected, self._mixed = expected, mixed
        self._sizes: dict[Any, int] = {}

    def size(self, features: Tensor, labels: Tensor, most: int) -> int | None:
        """Of records like these, where at most `most` rows may go through the model; a record has one for each of its
        labels. `None`: parts may be of any size.
        """
        if not one_size(features.device) or not len(labels):
            return None
        key = (features.shape[1:], features.dtype, features.device, labels.shape[1:], most)
        if key not in self._sizes:
            self._sizes[key] = self._size(features, labels, max(1, most // labels[0].numel()))
        return self._sizes[key]

    def together(self, count: int) -> int:
        """How many records most parts of `count` records may add up in single precision (`reserve.Reserve`)."""
        reserve, parts = Reserve(math.ceil(self.expected)), max(1, math.ceil(self.expected / count))
        return sorted(reserve.together(count) for _ in range(parts))[parts // 2]

    def _size(self, features: Tensor, labels: Tensor, most: int) -> int:
        trained = sum(parameter.numel() for parameter in trained_of(self._model).values())
        room = max(FEW, numbers_kept(features.device) // max(1, trained))
        wanted = self._of(most)
        try:
            plan = plan_of(self._model, self._loss, features, labels, wanted, self.together(wanted))
        except Unplanned:  # gradients of single records, all held at once
            return self._of(min(most, room))
        return self._of(min(most, plan.most))

    def _of(self, most: int) -> int:
        return min(MIXED, most) if self._mixed else size_for(self.expected, most)
