"""Several processes as one program: one batch, one ledger, noise once.

Every process holds the records and the model. The leader alone admits events, keeps the ledger and draws noise; all
draw the same batch from the same secret stream, and each takes the gradients of a part of it. So whatever their number,
what is released is what one process would release.

Guarantees: given the same secrets, batches are those of a single process, and a sum differs from its by the rounding of
double precision alone.
"""

from __future__ import annotations

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

from dprecipe.faults import Interrupted, RunFailed, UsageFault
from dprecipe.mechanisms.noisy_sum.batches import UnitNumbers
from dprecipe.noise.entropy import Stream
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.gate import Ticket

T = TypeVar("T")
PATIENCE = timedelta(days=2)
"""How long a process waits for the others: longer than scoring, compiling and publishing take. One that has died is
noticed by whoever launched them."""

LAUNCHER = "DPRECIPE_LAUNCHER"
"""In the environment of processes that `launch_processes` started: its process."""
WATCH_SECONDS = 0.5


class Processes(Protocol):
    """What takes part in a run, and which of it this process is."""

    rank: int
    count: int

    def agree(self, answer: Callable[[], T]) -> T:
        """The leader's answer, in every process; it is asked nowhere else."""

    def part(self, units: UnitNumbers) -> UnitNumbers:
        """This process's part of a batch; together the parts are the batch. It may be empty.

        Whose part a unit is in depends on its number alone: one more unit changes the sum of one process.
        """

    def summed(self, value: Tensor) -> Tensor:
        """The sum over all processes, with the same bits in each."""

    def released(self, noisy: Callable[[], Tensor], like: Tensor) -> Tensor:
        """The leader's noisy sum, (P,) float64, in every process; `like` has its shape."""

    def seed(self, stream: Stream) -> int:
        """A seed of this process's own."""

    def check_same(self, name: str, value: object) -> None:
        """Every process has the same value.

        Raises:
            UsageFault: one has another.
        """


@final
class SingleProcess:
    """One process."""

    rank, count = 0, 1

    def agree(self, answer: Callable[[], T]) -> T:
        return answer()

    def part(self, units: UnitNumbers) -> UnitNumbers:
        return units

    def summed(self, value: Tensor) -> Tensor:
        return value

    def released(self, noisy: Callable[[], Tensor], like: Tensor) -> Tensor:
        return noisy()

    def seed(self, stream: Stream) -> int:
        return stream.seed()

    def check_same(self, name: str, value: object) -> None:
        return


@final
class ProcessGroup:
    """Processes of one group of torch.distributed; the one of rank 0 leads."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where tensors are added up. What is no tensor goes by gloo, between the processors: there nobody
        loses patience with a leader who scores, saves and publishes."""
        self.rank, self.count = distributed.get_rank(), distributed.get_world_size()
        self._device = device if device.type == "cuda" else torch.device("cpu")
        self._objects = distributed.new_group(backend="gloo", timeout=PATIENCE)

    def agree(self, answer: Callable[[], T]) -> T:
        box: list[Any] = [answer() if self.rank == 0 else None]
        with reporting_unreachable():
            distributed.broadcast_object_list(box, src=0, group=self._objects, device=torch.device("cpu"))
        agreed: T = box[0]
        return agreed

    def part(self, units: UnitNumbers) -> UnitNumbers:
        mine: UnitNumbers = units[units % self.count == self.rank]
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

    def seed(self, stream: Stream) -> int:
        return int(stream.words(self.count)[self.rank] >> 1)

    def check_same(self, name: str, value: object) -> None:
        values: list[Any] = [None] * self.count
        with reporting_unreachable():
            distributed.all_gather_object(values, value, group=self._objects)
        other = next((rank for rank, result in enumerate(values) if result != values[0]), None)
        if other is not None:
            raise UsageFault(
                f"process {other} of this run has another {name} than process 0",
                "start every process with the same recipe, records and version",
            )


@final
class FollowerGate:
    """In the place of a gate, where another process leads: it admits nothing and releases nothing."""

    stop_reason = None

    def __init__(self, done: int = 0) -> None:
        self.done = done

    def admit(self) -> Ticket | None:
        raise RunFailed("internal fault: a process that is led asked for an event", "please report this")

    def release(self, ticket: Ticket, clipped: ClippedSum) -> Tensor:
        raise RunFailed("internal fault: a process that is led asked for noise", "please report this")


def world_size() -> int:
    """How many processes take part, as `torchrun` and `launch_processes` start them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_worker() -> bool:
    """Whether this process is one of several."""
    return world_size() > 1


def is_leader() -> bool:
    """Whether this process is the one that keeps the ledger; alone, it is."""
    return int(os.environ.get("RANK", "0")) == 0


def local_rank() -> int:
    """The number of this process among those on its machine: that of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def join_processes(device: torch.device) -> Processes:
    """The processes of this run, once all of them have come.

    Raises:
        RunFailed: they can't reach each other.
    """
    if not is_worker():
        return SingleProcess()
    if not distributed.is_initialized():
        with reporting_unreachable():
            if device.type == "cuda":
                torch.cuda.set_device(device)  # else every process of a machine takes its first GPU
                distributed.init_process_group("cpu:gloo,cuda:nccl", timeout=PATIENCE)
            else:
                distributed.init_process_group("gloo", timeout=PATIENCE)
    with reporting_unreachable():
        return ProcessGroup(device)


@contextmanager
def reporting_unreachable() -> Iterator[None]:
    """What torch says of a process that can't be reached, as a fault."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunFailed(
            f"another process of this run can't be reached: {reason}",
            "see what it said, and continue with --resume",
        ) from None


def end_with_launcher() -> None:
    """From now on, end at once when the process that started this one does: what a ledger holds stays spent, and the
    run can be resumed. Without it, the processes of a launcher that was killed would train on, unseen."""
    launcher = int(os.environ.get(LAUNCHER, os.getppid()))

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(WATCH_SECONDS)
        os._exit(RunFailed.exit_code)

    threading.Thread(target=watch, daemon=True).start()


def leave_processes() -> None:
    """End the group, if there is one."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def launch_processes(count: int, arguments: list[str], device: str) -> int:
    """Run `python -m dprecipe` with these arguments in `count` processes of this machine; the leader's exit code.

    `device`: that of the recipe's runtime.

    Raises:
        UsageFault: there are GPUs, and fewer of them.
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
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # each process speaks for itself
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        elastic_launch(config, sys.executable)("-u", "-m", "dprecipe", *arguments)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else RunFailed.exit_code
    except SignalException:
        return Interrupted.exit_code
    return 0
