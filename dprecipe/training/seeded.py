"""What layers draw, from a seed of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Let layers that draw (dropout) draw from a fresh secret seed, for the reason given in `Store.lot`."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
