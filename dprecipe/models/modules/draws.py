"""What a module draws, seen as it draws: whether each record has draws of its own.

Draws are each record's own where there are as many more of them as there are more records. One draw for a whole batch,
or for two records, is an answer that records share: what a record gets would depend on who is beside it.
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
"""Below this are the seeds of records that go through a module one by one; to draw one is no draw of the module."""


@final
@dataclass(frozen=True, slots=True)
class Drawn:
    """Of one call: how many numbers each drawing operation of torch drew, and whether Python or numpy were asked."""

    sizes: tuple[int, ...]
    elsewhere: str

    def __bool__(self) -> bool:
        return bool(self.sizes or self.elsewhere)


def drawn_by(module: nn.Module, features: Tensor) -> Drawn:
    """What the module draws for these records.

    Raises:
        Exception: what the module raises.
    """
    python, (_, keys, place, *_) = random.getstate(), np.random.get_state()
    # Kernels that draw inside (cuDNN's, fused attention) would not be seen.
    with torch.no_grad(), without_cudnn(), sdpa_kernel(SDPBackend.MATH), _DrawRecorder() as seen:
        module(features)
    _, keys_after, place_after, *_ = np.random.get_state()
    elsewhere = "Python" if random.getstate() != python else ""
    if place_after != place or not np.array_equal(keys_after, keys):
        elsewhere = "numpy"
    return Drawn(tuple(seen.sizes), elsewhere)


def shared_draws(module: nn.Module, batches: Sequence[Tensor]) -> str:
    """Why draws are not each record's own, as far as their number tells, in batches of several sizes;
    empty if they are.

    Raises:
        Exception: what the module raises.
    """
    results = [drawn_by(module, features) for features in batches]
    elsewhere = next((one.elsewhere for one in results if one.elsewhere), "")
    if elsewhere:
        return f"it draws from {elsewhere}'s generator, once for all of a batch"
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
