"""Whether a model is worth a GPU: small ones take less time on a CPU, for each kernel takes some to start."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

WORTH_MOVING = 25_000_000
"""Operations of the forward passes of a batch: a CPU does what comes of fewer in about five milliseconds, and on a GPU
noise and some hundred kernels take that to start. An estimate: no GPU was asked."""


def device_for(name: str, found: torch.device, model: nn.Module, shape: Sequence[int], expected: float) -> torch.device:
    """The device of a run for which `runtime.device` is `name` and a device was found: a CPU, where `auto` found a GPU
    that the model, on the CPU still, does not pay for with `expected` records a step of this shape."""
    if name != "auto" or found.type != "cuda" or expected * count_operations(model, shape) >= WORTH_MOVING:
        return found
    return torch.device("cpu")


def count_operations(model: nn.Module, shape: Sequence[int]) -> float:
    """Multiplications and additions of one record's forward pass, in products and convolutions; more than any where the
    model does not take a synthetic record."""
    parameter = next(model.parameters(), None)
    record = torch.zeros((1, *shape), device=None if parameter is None else parameter.device)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(record)
    except Exception:  # a model may raise anything; the probe tells of it
        return float("inf")
    return float(counter.get_total_flops())
