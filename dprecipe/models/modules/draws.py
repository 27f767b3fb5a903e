"""Records the random draws of a module, to see whether each record has draws of its own.

Each record has its own if the number of draws grows in proportion to the number of records. If a whole batch, or two
records, share a draw, what a record gets depends on the others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from dprecipe.models.modules.frozen_draws import consumes_randomness, without_cudnn

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


def record_draws(module: nn.Module, features: Tensor) -> Draws:
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
