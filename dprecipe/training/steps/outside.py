"""Code of somebody else's that runs between noisy steps: it may look at weights, and moves none."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from dprecipe.release.origins import quote_names
from dprecipe.training.steps.noisy_steps import NoisySteps
from dprecipe.training.steps.step_failures import StepFailed, are_equal

REMEDY = (
    "remove the callback that does it (averaging, pruning, thawing, a step of its own), and continue with resume=True; "
    "the recipe names the optimiser, training.average and model.train"
)


@final
class WeightGuard:
    """A copy of a model's tensors after each noisy step, to which they are compared before the next.

    Guarantees: no noisy step begins on a weight, and none is released, that moved since the last step, was replaced, or
    began or ceased to be trained.
    """

    def __init__(self, steps: NoisySteps) -> None:
        self._model, self._optimizer = steps.model, steps.optimizer
        self._trained = self._list_trained()
        self._groups = self._list_groups()
        self._kept = dict[str, Tensor]()
        self.keep()

    def _list_trained(self) -> dict[str, int]:
        named = self._model.named_parameters(remove_duplicate=False)
        return {name: id(parameter) for name, parameter in named if parameter.requires_grad}

    def _list_groups(self) -> list[list[int]]:
        return [[id(parameter) for parameter in group["params"]] for group in self._optimizer.param_groups]

    def keep(self) -> None:
        """Copies the tensors as a noisy step has left them."""
        tensors = self._model.state_dict()
        if self._kept.keys() != tensors.keys():
            self._kept = {name: torch.empty_like(value) for name, value in tensors.items()}
        for name, value in tensors.items():
            self._kept[name].copy_(value)

    def check(self) -> None:
        """Compares the tensors to those that the last noisy step has left, and puts those back.

        Raises:
            StepFailed: a tensor differs, or another set of them is trained.
        """
        now, trained = self._model.state_dict(), self._list_trained()
        moved = [
            name
            for name in dict.fromkeys((*self._kept, *now))
            if name not in now or name not in self._kept or not are_equal(self._kept[name], now[name])
        ]
        moved += sorted({name for name, _ in self._trained.items() ^ trained.items()} - set(moved))
        if not moved and self._list_groups() == self._groups:
            return
        with torch.no_grad():
            for name in self._kept.keys() & now.keys():
                if now[name].shape == self._kept[name].shape:
                    now[name].copy_(self._kept[name])
        what = quote_names(moved) if moved else "the optimiser's list of weights"
        raise StepFailed(f"something other than a noisy step changed the model between two steps: {what}", REMEDY)
