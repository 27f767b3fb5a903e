"""Draws at rest: every operation that draws random numbers answers constants instead.

With draws at rest a module is a function of its records alone, so that a record by itself, in company, or under `vmap`
can be compared. Which numbers are answered does not matter; that they are the same in any company does.
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
"""What a draw of a real number answers. Bernoulli's answers 1: nothing is dropped. Whole numbers are the lowest."""


@contextmanager
def freeze_generators() -> Iterator[None]:
    """Let all draws rest. Kernels that draw inside (cuDNN's, fused attention) are not used meanwhile."""
    with without_cudnn(), sdpa_kernel(SDPBackend.MATH), _Resting():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def without_cudnn() -> Iterator[None]:
    """cuDNN is not used. torch's own `cudnn.flags` would turn TF32 on meanwhile."""
    cudnn: Any = torch.backends.cudnn
    enabled = cudnn.enabled
    cudnn.enabled = False
    try:
        yield
    finally:
        cudnn.enabled = enabled


class _Resting(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
        drawn = func(*args, **kwargs)
        return _filled(drawn, name, args) if isinstance(drawn, Tensor) else drawn


def consumes_randomness(func: Any) -> bool:
    """Whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def _filled(drawn: Tensor, name: str, args: Any) -> Tensor:
    if name.startswith("bernoulli"):
        return drawn.fill_(1)
    if name.startswith(("randint", "random")):
        bounds = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)]
        return drawn.fill_(bounds[0] if len(bounds) > 1 else 0)
    if name == "multinomial":
        return drawn.fill_(0)
    return drawn.fill_(CONSTANT) if drawn.is_floating_point() else drawn
