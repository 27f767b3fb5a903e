"""What layers draw, from a seed of one's own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def draw_from(seed: int) -> None:
    """Seed the global generators of torch, Python and numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed([seed % 2**32, (seed >> 32) % 2**32])


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Let layers that draw (dropout) draw from a fresh secret seed, for the reason given in `Store.batch`.

    Torch's global generator is seeded, and those of Python and numpy, which a module from Python may ask; all of them
    are left as they were found.
    """
    ours, theirs = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            draw_from(seed)
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)
