"""Several processes that run one program: one batch, one ledger, one draw of noise.

Every process holds the records and the model. Only the leader admits events, writes the ledger and draws noise. All
processes draw the same batch from the same secret stream, and each computes the gradients of its part. So the release
does not depend on their number.

Guarantees: given the same secrets, batches are those of a single process, and sums differ from its sums only by
rounding in double precision.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar, final

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dprecipe.faults import Interrupted, RunFailed, UsageFault
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.processes.launch import LAUNCHER, UNSET
from dprecipe.training.run.gate import SumNoise, Ticket

T = TypeVar("T")
PATIENCE = timedelta(days=2)
"""The time that a process waits for the others: longer than scoring, compiling and publishing take. The launcher
notices a process that has died."""

WATCH_SECONDS = 0.5


class Processes(Protocol):
    """The processes of a run, and the number of this one."""

    rank: int
    count: int

    def agree(self, answer: Callable[[], T]) -> T:
        """Returns the leader's answer, in every process; the other processes do not call `answer`."""

    def part(self, units: UnitNumbers, groups: UnitNumbers) -> UnitNumbers:
        """This process's part of a batch; the parts partition the batch. A part may be empty.

        `groups`: one number for each unit. Only it decides which part a unit is in, so one more unit changes the sum of
        one process, and a group is in one part whole.
        """

    def summed(self, value: Tensor) -> Tensor:
        """Returns the sum over all processes, with the same bits in each."""

    def released(self, noisy: Callable[[], Tensor], like: Tensor) -> Tensor:
        """Returns the leader's noisy sum, (P,) float64, in every process; `like` has its shape."""

    def shard(self, size: int) -> slice:
        """Returns this process's part of `size` coordinates; the parts partition them. A part may be empty."""

    def shard_of(self, rank: int, size: int) -> slice:
        """Returns the `shard` of any process."""

    def scattered(self, value: Tensor) -> Tensor:
        """This process's shard of the sum over all processes, of (P,), which is overwritten."""

    def gathered(self, own: Tensor, size: int) -> Tensor:
        """Returns (`size`,): the shards of all processes, with the same bits in each."""

    def seed(self, stream: Stream) -> int:
        """Returns a seed that no other process has."""

    def least(self, value: int) -> int:
        """Returns the least value of all processes, in every process."""

    def check_same(self, name: str, value: object) -> None:
        """Checks that every process has the same value.

        Raises:
            UsageFault: one has a different value.
        """


@final
class SingleProcess:
    """One process."""

    rank, count = 0, 1

    def agree(self, answer: Callable[[], T]) -> T:
        return answer()

    def part(self, units: UnitNumbers, groups: UnitNumbers) -> UnitNumbers:
        return units

    def summed(self, value: Tensor) -> Tensor:
        return value

    def released(self, noisy: Callable[[], Tensor], like: Tensor) -> Tensor:
        return noisy()

    def shard(self, size: int) -> slice:
        return slice(0, size)

    def shard_of(self, rank: int, size: int) -> slice:
        return slice(0, size)

    def scattered(self, value: Tensor) -> Tensor:
        return value

    def gathered(self, own: Tensor, size: int) -> Tensor:
        return own

    def seed(self, stream: Stream) -> int:
        return stream.seed()

    def least(self, value: int) -> int:
        return value

    def check_same(self, name: str, value: object) -> None:
        return


@final
class ProcessGroup:
    """The processes of a torch.distributed group; rank 0 is the leader."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where tensors are added. Everything else is sent with gloo, between CPUs, with a time limit that
        allows the leader to score, save and publish."""
        self.rank, self.count = distributed.get_rank(), distributed.get_world_size()
        self._device = device if device.type == "cuda" else torch.device("cpu")
        self._objects = distributed.new_group(backend="gloo", timeout=PATIENCE)

    def agree(self, answer: Callable[[], T]) -> T:
        box: list[Any] = [answer() if self.rank == 0 else None]
        with reporting_unreachable():
            distributed.broadcast_object_list(box, src=0, group=self._objects, device=torch.device("cpu"))
        agreed: T = box[0]
        return agreed

    def part(self, units: UnitNumbers, groups: UnitNumbers) -> UnitNumbers:
        mine: UnitNumbers = units[groups % self.count == self.rank]
        return mine

    def summed(self, value: Tensor) -> Tensor:
        total = value.to(self._device, copy=True)
        with reporting_unreachable():
            distributed.all_reduce(total)
        return total.to(value.device)

    def released(self, noisy: Callable[[], Tensor], like: Tensor) -> Tensor:
        value = noisy() if self.rank == 0 else torch.empty_like(like, dtype=torch.float64)
        shared = value.to(self._device).contiguous()
        with reporting_unreachable():
            distributed.broadcast(shared, src=0)
        return shared.to(value.device)

    def shard(self, size: int) -> slice:
        return self.shard_of(self.rank, size)

    def scattered(self, value: Tensor) -> Tensor:
        whole = value.to(self._device)
        with reporting_unreachable():
            for rank, part in self._parts(whole):
                distributed.reduce(part, dst=rank)
        return whole[self.shard(len(value))].to(value.device, copy=True)

    def gathered(self, own: Tensor, size: int) -> Tensor:
        whole = own.new_empty(size, device=self._device)
        whole[self.shard(size)] = own.detach()
        with reporting_unreachable():
            for rank, part in self._parts(whole):
                distributed.broadcast(part, src=rank)
        return whole.to(own.device)

    def _parts(self, whole: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yields each process and its shard, where it has one."""
        for rank in range(self.count):
            part = whole[self.shard_of(rank, len(whole))]
            if len(part):
                yield rank, part

    def shard_of(self, rank: int, size: int) -> slice:
        length = -(-size // self.count)
        return slice(min(size, rank * length), min(size, (rank + 1) * length))

    def seed(self, stream: Stream) -> int:
        return int(stream.words(self.count)[self.rank] >> 1)

    def least(self, value: int) -> int:
        return int(min(self._values(value)))

    def _values(self, value: object) -> list[Any]:
        """Returns the values of all processes, in order."""
        values: list[Any] = [None] * self.count
        with reporting_unreachable():
            distributed.all_gather_object(values, value, group=self._objects)
        return values

    def check_same(self, name: str, value: object) -> None:
        values = self._values(value)
        other = next((rank for rank, result in enumerate(values) if result != values[0]), None)
        if other is not None:
            raise UsageFault(
                f"process {other} of this run has a different {name} than process 0",
                "start every process with the same recipe, records and version",
            )


@final
class FollowerGate:
    """Replaces the gate in processes that are not the leader: it admits nothing, and releases nothing but the shard of
    its own process, with a ticket of the leader's gate."""

    stop_reason = None

    def __init__(self, secrets: Secrets, done: int = 0) -> None:
        self.done = done
        self._noise = SumNoise(secrets)

    def admit(self) -> Ticket | None:
        raise RunFailed("internal fault: a process that is not the leader requested an event", "please report this")

    def release(self, ticket: Ticket, clipped: ClippedSum, shard: int = 0) -> Tensor:
        """Returns the noisy sum of a shard, which is not the leader's: see `SumNoise.release`."""
        if shard == 0:
            raise RunFailed("internal fault: a process that is not the leader requested noise", "please report this")
        return self._noise.release(ticket, clipped, shard)


def world_size() -> int:
    """Returns the number of processes, as set by `torchrun` and `launch_processes`."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_worker() -> bool:
    """Returns True if this process is one of several."""
    return world_size() > 1


def local_rank() -> int:
    """Returns the number of this process among those on its machine, which is also the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def join_processes(device: torch.device) -> Processes:
    """Returns the processes of this run, once all of them have joined.

    Raises:
        RunFailed: they can't reach each other.
    """
    if not is_worker():
        return SingleProcess()
    if not distributed.is_initialized():
        with reporting_unreachable():
            if device.type == "cuda":
                torch.cuda.set_device(device)  # otherwise every process of a machine would use its first GPU
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(backend, timeout=PATIENCE, **_find_meeting())
        atexit.register(_leave_processes)
    with reporting_unreachable():
        return ProcessGroup(device)


def _find_meeting() -> dict[str, Any]:
    """Returns the meeting point of the processes, if it is not torch's own choice.

    After a restart, torchrun's store still has the addresses of the processes that have ended. Those that were started
    together use a part of the store that none before them has used.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts == "0":
        return {}
    store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
    return {"store": PrefixStore(f"restart {restarts}", store), "rank": rank, "world_size": count}


def _leave_processes() -> None:
    """Ends the threads of the group before the process ends: torch aborts where one outlives its owner."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


@contextmanager
def reporting_unreachable() -> Iterator[None]:
    """Turns torch's error about an unreachable process into a fault."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunFailed(
            f"another process of this run can't be reached: {reason}",
            f"read that process's output, then continue with --resume; if this one is alone, {UNSET}",
        ) from None


def end_with_launcher() -> None:
    """Ends this process, from now on, when the process that started it ends. What the ledger holds stays spent, and the
    run can be resumed. Without this, processes would train on unnoticed after their launcher was killed."""
    launcher = int(os.environ.get(LAUNCHER, os.getppid()))

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(WATCH_SECONDS)
        os._exit(RunFailed.exit_code)

    threading.Thread(target=watch, daemon=True).start()


def launch_processes(count: int, arguments: list[str], device: str) -> int:
    """Runs `python -m dprecipe` with these arguments in `count` processes on this machine; returns the exit code.

    `device`: `runtime.device` of the recipe.

    Raises:
        UsageFault: the machine has GPUs, but fewer than `count`.
    """
    gpus = torch.cuda.device_count()
    if device in ("auto", "cuda") and 0 < gpus < count:
        raise UsageFault(
            f"runtime.processes is {count}, and this machine has {gpus} GPU{'s' * (gpus > 1)}: each process needs one",
            f"set runtime.processes to {gpus}, or runtime.device to cpu",
        )
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        run_id=f"dprecipe-{os.getpid()}",
    )
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # each process reports its own errors
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        elastic_launch(config, sys.executable)("-u", "-m", "dprecipe", *arguments)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else RunFailed.exit_code
    except Exception as error:
        if not raised_by(error, SignalException):
            raise
        return Interrupted.exit_code
    return 0


def raised_by(error: BaseException, kind: type[BaseException]) -> bool:
    """Returns True if the error, or one in its chain of causes and contexts, is of this kind. A signal between two
    lines of torch's launcher surfaces as another error of its clean-up."""
    following: BaseException | None = error
    while following is not None:
        if isinstance(following, kind):
            return True
        following = following.__cause__ or following.__context__
    return False
