"""Work that goes on beside the device's: the next part of a batch is fetched while this one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")


def prefetch_results(function: Callable[[T], R], inputs: Iterable[T]) -> Iterator[R]:
    """Yields `map(function, inputs)`, with each call made while the answer before it is in use: in one thread, in
    order.

    Guarantees: no more than one answer is waiting; what a call raises is raised where its answer is due; however the
    iteration ends, no call goes on after it.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        waiting: Future[R] | None = None
        for value in inputs:
            following = thread.submit(function, value)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


def runs_asynchronously(device: torch.device) -> bool:
    """Returns True if a device computes by itself, while the CPU does something else."""
    return device.type == "cuda"


def pin_array(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """Returns the array as a tensor on the CPU, for a CUDA device in memory that it can copy from by itself."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def carry_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on the device; a CUDA device is not waited for, and until it has copied, torch uses the memory
    for nothing else."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
