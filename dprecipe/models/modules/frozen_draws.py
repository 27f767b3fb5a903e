"""Frozen draws: every operation that draws random numbers returns constants instead.

With frozen draws a module is a function of its records alone, so that a record by itself, in a batch and under `vmap`
can be compared. The constants do not matter, as long as they are the same in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

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
