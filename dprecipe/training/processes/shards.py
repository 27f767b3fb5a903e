"""Shards of a step's update: each of several processes keeps one part of the coordinates.

Each process clips and adds up the gradients of its records. The sums are added up over processes so that each has the
whole sum of its own shard alone. There it adds noise, from a stream of its own, and there it keeps the optimiser's
state, the average, the filter and the weights that it moves; the moved weights are gathered. The weights themselves are
whole in each process, and so is the sum of its own records.

Formal guarantee: shards partition the coordinates of the sum, in order, so every coordinate gets one draw, from one
process; its scale is that of the whole sum's sensitivity; no two shards share a stream. No process draws without a
ticket, which comes from the leader's gate, after the ledger has the event.

| case | what happens |
|---|---|
| the coordinates can't be divided evenly | the last shards are smaller, or empty |
| another number of processes after a resume | a checkpoint has everything whole, and is divided again |
| parameters of several types of numbers | refused before anything is spent |

`Shard` exchanges parts of the whole and sums into shards, which are those of `Processes.shard_of`. Each process makes
the same calls in the same order, or none goes on.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", stages 1 and 2.
Legend: P trained parameters, S of them in a shard, of `size` in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from dprecipe.faults import RunFailed
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.processes.processes import Processes, reporting_unreachable
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

    def collect(
        self, optimizer: dict[str, Any], fresh: dict[str, Any], vectors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Returns the optimiser's state and `vectors`, (S,) by name, whole, in every process; `fresh`: see
        `gather_state`. Where weights are in shards, the weights, too, and all of it in the leader alone."""
        return {
            "optimizer": self.gather_state(optimizer, fresh),
            "vectors": {name: self._processes.gathered(own_S, self._size) for name, own_S in vectors.items()},
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

    def cut_vector(self, whole_P: Tensor) -> Tensor:
        """Returns (S,): this shard of a vector."""
        return whole_P[self.place].clone()

    @property
    def _numbers(self) -> range:
        return range(len(self._trained))

    def _cut(self, values: Sequence[Tensor]) -> Tensor:
        """Returns (S,): this shard of tensors in the shapes of the parameters."""
        flat_P = torch.cat([value.detach().reshape(-1) for value in values])
        if len(flat_P) != self._size:
            raise ValueError(f"{len(flat_P)} numbers for {self._size} parameters")
        return flat_P[self.place].clone()


BUCKET = 1 << 22
"""The least count of numbers in a sum that are sent at once, where there are as many: 32 MiB."""
ALL_GATHER = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
"""The former is the name since torch 2.13, where the latter warns."""


def fill(processes: Processes, whole: Tensor, place: slice, own_S: Tensor, size: int) -> None:
    """Fills `whole` with the numbers of `place`; each process has those of its own shard in `own_S`."""
    with reporting_unreachable():
        for rank, part in owners(processes, place, size):
            values = whole[part.start - place.start : part.stop - place.start]
            if rank == processes.rank:
                start = processes.shard_of(rank, size).start
                values.copy_(own_S[part.start - start : part.stop - start])
            if processes.count > 1:
                distributed.broadcast(values, src=rank)


def collect(processes: Processes, own_S: Tensor, size: int) -> Tensor | None:
    """Returns (`size`,) on the CPU: all shards, in the leader; None in the others."""
    shard = own_S.detach().contiguous()
    with reporting_unreachable():
        if processes.rank:
            if len(shard):
                distributed.send(shard, dst=0)
            return None
        whole = torch.empty(size, dtype=shard.dtype)
        for rank, part in owners(processes, slice(0, size), size):
            received = shard if rank == 0 else shard.new_empty(part.stop - part.start)
            if rank:
                distributed.recv(received, src=rank)
            whole[part] = received.cpu()
        return whole


def owners(processes: Processes, place: slice, size: int) -> Iterator[tuple[int, slice]]:
    """Yields each process that has numbers of `place`, and which."""
    for rank in range(processes.count):
        shard = processes.shard_of(rank, size)
        start, stop = max(shard.start, place.start), min(shard.stop, place.stop)
        if start < stop:
            yield rank, slice(start, stop)


@final
class FrozenGather:
    """The gather of `fully_shard`: the default one, with a fault where a process is lost."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: distributed.ProcessGroup, async_op: bool = False
    ) -> Any:
        with reporting_unreachable():
            return ALL_GATHER(output_tensor, input_tensor, group, async_op)


@final
class ShardSum:
    """A sum over processes; each keeps its shard: numbers are sent to the process that owns them, and added there."""

    def __init__(self, processes: Processes, size: int, device: torch.device) -> None:
        place = processes.shard_of(processes.rank, size)
        self.own = torch.zeros(place.stop - place.start, dtype=torch.float64, device=device)
        """(S,): this process's shard, complete after `flush`."""
        self._processes, self._size, self._start = processes, size, place.start
        self._waiting: list[tuple[slice, Tensor]] = []
        self._count = 0

    def add(self, place: slice, values: Tensor) -> None:
        """Adds float64 `values` at `place`; every process adds numbers, maybe zeros, at the same places."""
        self._waiting.append((place, values))
        self._count += len(values)
        if self._count >= BUCKET:
            self.flush()

    def flush(self) -> None:
        """Sends what waits."""
        waiting, self._waiting, self._count = self._waiting, [], 0
        by_owner: dict[int, list[tuple[slice, Tensor]]] = {}
        for place, values in waiting:
            for rank, part in owners(self._processes, place, self._size):
                cut = values[part.start - place.start : part.stop - place.start]
                by_owner.setdefault(rank, []).append((part, cut))
        with reporting_unreachable():
            for rank in sorted(by_owner):
                parts = by_owner[rank]
                total = torch.cat([cut for _, cut in parts])
                if self._processes.count > 1:
                    distributed.reduce(total, dst=rank)
                if rank == self._processes.rank:
                    self._take(parts, total)

    def _take(self, parts: list[tuple[slice, Tensor]], total: Tensor) -> None:
        for (part, _), summed in zip(parts, torch.split(total, [len(cut) for _, cut in parts]), strict=True):
            self.own[part.start - self._start : part.stop - self._start] += summed
