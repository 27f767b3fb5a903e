"""A clock of the time that a device works."""

from __future__ import annotations

import time

import torch


def read_clock(device: torch.device) -> float:
    """Returns seconds, after the device has finished its work. On a CPU, those of this thread, so that other programs
    do not count."""
    if device.type == "cpu":
        return time.thread_time()
    torch.zeros((), device=device).item()  # waits
    return time.perf_counter()
