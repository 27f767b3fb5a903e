"""The choice between CPU and GPU for a model. Small ones take less time on a CPU, as each GPU kernel takes time to
start."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

MIN_GPU_OPERATIONS = 25_000_000
"""Operations of a batch's forward passes, below which a CPU is chosen. It takes about five milliseconds for a step with
fewer, and so do noise and some hundred kernels to start on a GPU. An estimate, not measured on a GPU."""


def device_for(
    name: str, device: torch.device, model: nn.Module, shape: Sequence[int], expected: float
) -> torch.device:
    """Returns the device of a run for which `runtime.device` is `name` and a device was found: a CPU, where `auto`
    found a GPU that the model, on the CPU still, does not pay for with `expected` records a step of this shape."""
    if name != "auto" or device.type != "cuda" or expected * count_operations(model, shape) >= MIN_GPU_OPERATIONS:
        return device
    return torch.device("cpu")


def count_operations(model: nn.Module, shape: Sequence[int]) -> float:
    """Multiplications and additions of one record's forward pass, in products and convolutions; infinite if the model
    fails on a synthetic record."""
    parameter = next(model.parameters(), None)
    record = torch.zeros((1, *shape), device=None if parameter is None else parameter.device)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(record)
    except Exception:  # a model may raise anything; the probe reports it
        return float("inf")
    return float(counter.get_total_flops())
