"""Shards of a step's update: each of several processes keeps one part of the coordinates.

Each process clips and adds up the gradients of its records. The sums are added up over processes so that each has the
whole sum of its own shard alone. There it adds noise, from a stream of its own, and there it keeps the optimiser's
state, the average and the weights that it moves; the moved weights are gathered. The weights themselves are whole in
each process, and so is the sum of its own records.

Formal guarantee: shards partition the coordinates of the sum, in order, so every coordinate gets one draw, from one
process; its scale is that of the whole sum's sensitivity; no two shards share a stream. No process draws without a
ticket, which comes from the leader's gate, after the ledger has the event.

| case | what happens |
|---|---|
| the coordinates can't be divided evenly | the last shards are smaller, or empty |
| another number of processes after a resume | a checkpoint has everything whole, and is divided again |
| parameters of several types of numbers | refused before anything is spent |

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", stages 1 and 2.
Legend: P trained parameters, S of them in a shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dprecipe.faults import RunFailed
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.processes.processes import Processes
from dprecipe.training.steps.optimise import cut_like

COUNTER = "step"
"""The optimiser's name for its number of steps, the one thing in its state that has no coordinates."""


def check_divisible(trained: Sequence[nn.Parameter]) -> None:
    """Checks that these parameters can be one vector of numbers.

    Raises:
        RunFailed: they are of several types of numbers, or on several devices.
    """
    if len({(parameter.dtype, parameter.device) for parameter in trained}) > 1:
        raise RunFailed(
            "runtime.sharding: the trained parameters have several types of numbers",
            "give them one, or remove runtime.sharding",
        )


class Shard:
    """This process's part of the trained parameters, which `weights` (S,) holds."""

    def __init__(self, processes: Processes, trained: Sequence[nn.Parameter]) -> None:
        """Raises RunFailed as `check_divisible`, which a run asks before it spends anything."""
        check_divisible(trained)
        self._processes = processes
        self._trained = list(trained)
        self._size = sum(parameter.numel() for parameter in trained)
        self.place = processes.shard(self._size)
        self.weights = nn.Parameter(self._cut(self._trained))

    def load(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Gives the model the weights in `state`, and takes this shard of them.

        Raises:
            RuntimeError: they are not of this model.
        """
        model.load_state_dict(state)
        with torch.no_grad():
            self.weights.copy_(self._cut(self._trained))

    def spread(self) -> None:
        """Puts the weights of all shards into the model, the same in every process."""
        with torch.no_grad():
            for parameter, part in zip(self._trained, self.gather(self.weights), strict=True):
                parameter.copy_(part)

    def keep(self, clipped: ClippedSum) -> ClippedSum:
        """Returns this shard's part of the sum over all processes; it is bounded as the whole is."""
        bound = clipped.bound[self.place] if isinstance(clipped.bound, Tensor) else clipped.bound
        return replace(clipped, value=self._processes.scattered(clipped.value), bound=bound)

    def gather(self, own_S: Tensor) -> list[Tensor]:
        """Returns what all shards have, in the shapes of the parameters."""
        return cut_like(self._processes.gathered(own_S.detach(), self._size), self._trained)

    def collect(self, optimizer: dict[str, Any], fresh: dict[str, Any], average_S: Tensor | None) -> dict[str, Any]:
        """Returns the optimiser's state and the average whole, in every process; `fresh`: see `gather_state`. Where
        weights are in shards, the weights, too, and all of it in the leader alone."""
        return {
            "optimizer": self.gather_state(optimizer, fresh),
            "average": None if average_S is None else self._processes.gathered(average_S, self._size),
        }

    def gather_state(self, own: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
        """Returns an optimiser's state of all parameters, from those of the shards: the state that one process would
        have.

        `whole`: the state of an optimiser of all parameters that has made no step.
        """
        by_name = {
            name: [value] * len(self._trained) if name == COUNTER else self.gather(value)
            for name, value in own["state"].get(0, {}).items()
            if isinstance(value, Tensor)
        }
        state = {number: {name: values[number].clone() for name, values in by_name.items()} for number in self._numbers}
        return {**whole, "state": state if by_name else {}}

    def cut_state(self, whole: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        """This shard's part of an optimiser's state of all parameters; `own`: that of its optimiser, before any step.

        Raises:
            KeyError, TypeError, ValueError: it is not of these parameters.
        """
        state = whole["state"]
        if not state:
            return own
        if set(state) != set(self._numbers):
            raise ValueError("the state of an optimiser of other parameters")
        names = list(state[0])
        cut = {
            name: state[0][name] if name == COUNTER else self._cut([state[number][name] for number in self._numbers])
            for name in names
        }
        return {**own, "state": {0: cut}}

    def cut_average(self, whole_P: Tensor | None) -> Tensor | None:
        """Returns (S,): this shard of an average."""
        return None if whole_P is None else whole_P[self.place].clone()

    @property
    def _numbers(self) -> range:
        return range(len(self._trained))

    def _cut(self, values: Sequence[Tensor]) -> Tensor:
        """Returns (S,): this shard of tensors in the shapes of the parameters."""
        flat_P = torch.cat([value.detach().reshape(-1) for value in values])
        if len(flat_P) != self._size:
            raise ValueError(f"{len(flat_P)} numbers for {self._size} parameters")
        return flat_P[self.place].clone()
