"""Synthetic records, from which plans and programs are made: the shapes and types of records, never their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def synthetic_records(features: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Makes `count` records of these shapes and types. Labels are zero, whole numbers zero or one."""
    shape = (count, *features.shape[1:])
    if features.is_floating_point():
        generator = torch.Generator().manual_seed(0)
        result = torch.randn(shape, generator=generator, dtype=torch.float32).to(features)
    else:
        result = (torch.arange(torch.Size(shape).numel()) % 2).view(shape).to(features)
    return result, labels.new_zeros(count, *labels.shape[1:])


@contextmanager
def preserve_generators(device: torch.device) -> Iterator[None]:
    """Inside, draws come from a fixed seed; afterwards the global generators are as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield
