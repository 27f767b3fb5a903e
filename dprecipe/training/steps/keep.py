"""The iterate that is released: of those scored along a run, the one with the best score on public records.

Formal guarantee: post-processing. Every iterate is a function of released noisy sums, and the choice one of iterates
and of records that are declared public. The ledger charges all steps, those after the kept iterate too.

| case | what is kept |
|---|---|
| two equal scores | the earlier one |
| a loss that is not finite | nothing of this iterate |
| no iterate that was scored | the last one, as without `training.keep` |
| a resumed run | the best so far is in the checkpoint; an iterate that a crash took was not looked at |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

from torch import Tensor

from dprecipe.language.training import Keep
from dprecipe.release.facts import KeptIterate
from dprecipe.training.program.evaluate import Score


@final
class BestIterate:
    """The best iterate so far. One process has it: the leader, which scores."""

    def __init__(self, spec: Keep) -> None:
        self._by = spec.by
        self._value = math.nan
        self._step = 0
        self._looked_at = 0
        self.weights: Mapping[str, Tensor] | None = None
        """The weights to release, on the CPU; None before the first iterate that can be kept."""

    @property
    def facts(self) -> KeptIterate | None:
        """The facts on the choice; None where there was none."""
        return None if self.weights is None else KeptIterate(self._step, self._looked_at)

    def take(self, step: int, score: Score, weights: Mapping[str, Tensor]) -> None:
        """Looks at the weights that would be released after `step` steps."""
        value = {"accuracy": score.accuracy, "loss": score.loss, "mean_absolute_error": score.mean_absolute_error}[
            self._by
        ]
        if value is None or not math.isfinite(value) or not math.isfinite(score.loss):
            return
        self._looked_at += 1
        if self.weights is None or (value > self._value if self._by == "accuracy" else value < self._value):
            self._value, self._step = value, step
            self.weights = {name: weight.detach().to("cpu", copy=True) for name, weight in weights.items()}

    def state(self) -> dict[str, Any]:
        """Returns all that a later attempt needs: tensors and numbers only."""
        weights = None if self.weights is None else dict(self.weights)
        return {"weights": weights, "value": self._value, "step": self._step, "looked_at": self._looked_at}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            KeyError, TypeError, ValueError: it is not a state of this.
        """
        self.weights, self._value = state["weights"], float(state["value"])
        self._step, self._looked_at = int(state["step"]), int(state["looked_at"])
