"""Exchange between processes that each have a shard of a vector: parts of the whole, sums into shards.

The shards are those of `Processes.shard_of`. Each process makes the same calls in the same order, or none goes on.

Legend: S numbers of this process's shard, of `size` in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
import torch.distributed as distributed
from torch import Tensor

from dprecipe.training.processes.processes import Processes, reporting_unreachable

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
