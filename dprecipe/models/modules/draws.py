"""The random draws of a module: seeded, replaced by constants, or recorded to see whether records share them.

With frozen draws a module is a function of its records alone, so that a record by itself, in a batch and under `vmap`
can be compared. The constants do not matter, as long as they are the same in any batch.

Each record has its own if the number of draws grows in proportion to the number of records. If a whole batch, or two
records, share a draw, what a record gets depends on the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode


def draw_from(seed: int, device: torch.device) -> None:
    """Seeds the global generators of torch (the processor's and the device's), Python and numpy.

    `torch.manual_seed` draws the same numbers, and asks every kind of accelerator whether it is there, which takes
    longer than a step of a small model.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
    random.seed(seed)
    np.random.seed([seed % 2**32, (seed >> 32) % 2**32])


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Lets layers that draw (dropout) draw from a fresh secret seed, for the reason given in `Store.batch`.

    Torch's global generator is seeded, and those of Python and numpy, which a module from Python may ask; all of them
    are left as they were found.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            draw_from(seed, device)
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


CONSTANT = 0.5
"""The result of a real draw. A Bernoulli draw gives 1: nothing is dropped. An integer draw gives the lowest."""


@contextmanager
def freeze_generators() -> Iterator[None]:
    """Freezes all draws. Kernels that draw internally (cuDNN's, fused attention) are not used inside."""
    with without_cudnn(), sdpa_kernel(SDPBackend.MATH), _FrozenDraws():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Turns cuDNN off inside the block. torch's own `cudnn.flags` would turn TF32 on."""
    cudnn: Any = torch.backends.cudnn
    enabled = cudnn.enabled
    cudnn.enabled = False
    try:
        yield
    finally:
        cudnn.enabled = enabled


class _FrozenDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not consumes_randomness(func):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            values, share, training = args
            factor = 1 / (1 - share) if training is not False and share < 1 else 1.0
            return values * factor, torch.ones_like(values, dtype=torch.bool)
        if name == "randperm":
            result: Tensor = func(*args, **kwargs)
            return result.copy_(torch.arange(len(result), device=result.device))
        draws = func(*args, **kwargs)
        return _filled(draws, name, args) if isinstance(draws, Tensor) else draws


def consumes_randomness(func: Any) -> bool:
    """Returns True if an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def _filled(draws: Tensor, name: str, args: Any) -> Tensor:
    if name.startswith("bernoulli"):
        return draws.fill_(1)
    if name.startswith(("randint", "random")):
        bounds = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)]
        return draws.fill_(bounds[0] if len(bounds) > 1 else 0)
    if name == "multinomial":
        return draws.fill_(0)
    return draws.fill_(CONSTANT) if draws.is_floating_point() else draws


SEEDS = 1 << 62
"""Seeds of records that go through a module one by one are below this. Drawing a seed is not a draw of the module."""


@final
@dataclass(frozen=True, slots=True)
class Draws:
    """Draws of one call: how many numbers each operation of torch drew, and whether Python's or numpy's generator was
    used."""

    sizes: tuple[int, ...]
    other_generator: str

    def __bool__(self) -> bool:
        return bool(self.sizes or self.other_generator)


def record_draws(module: Callable[[Tensor], object], features: Tensor) -> Draws:
    """Returns the draws of the module for these records.

    Raises:
        Exception: what the module raises.
    """
    python, (_, keys, place, *_) = random.getstate(), np.random.get_state()
    # Kernels that draw inside (cuDNN's, fused attention) would not be seen.
    with torch.no_grad(), without_cudnn(), sdpa_kernel(SDPBackend.MATH), _DrawRecorder() as recorder:
        module(features)
    _, keys_after, place_after, *_ = np.random.get_state()
    other_generator = "Python" if random.getstate() != python else ""
    if place_after != place or not np.array_equal(keys_after, keys):
        other_generator = "numpy"
    return Draws(tuple(recorder.sizes), other_generator)


def find_shared_draws(module: nn.Module, batches: Sequence[Tensor]) -> str:
    """Explains why records share draws, judged by the number of draws in batches of several sizes; empty if they do
    not.

    Raises:
        Exception: what the module raises.
    """
    results = [record_draws(module, features) for features in batches]
    other_generator = next((one.other_generator for one in results if one.other_generator), "")
    if other_generator:
        return f"it draws from {other_generator}'s generator, once for all of a batch"
    for one, features in zip(results[1:], batches[1:], strict=True):
        scaled = [size * len(features) for size in results[0].sizes]
        if scaled != [size * len(batches[0]) for size in one.sizes]:
            return "what it draws does not grow with the number of records, so that records share it"
    return ""


class _DrawRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        if consumes_randomness(func) and not (args and isinstance(args[0], int) and args[0] == SEEDS):
            first = answer[0] if isinstance(answer, tuple) else answer
            self.sizes.append(first.numel() if isinstance(first, Tensor) else 1)
        return answer
