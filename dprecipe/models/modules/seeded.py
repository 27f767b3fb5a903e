"""Seeds for the draws of layers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def draw_from(seed: int, device: torch.device) -> None:
    """Seeds the global generators of torch (the processor's and the device's), Python and numpy.

    `torch.manual_seed` draws the same numbers, and asks every kind of accelerator whether it is there, which takes
    longer than a step of a small model.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
    random.seed(seed)
    np.random.seed([seed % 2**32, (seed >> 32) % 2**32])


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Lets layers that draw (dropout) draw from a fresh secret seed, for the reason given in `Store.batch`.

    Torch's global generator is seeded, and those of Python and numpy, which a module from Python may ask; all of them
    are left as they were found.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            draw_from(seed, device)
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
