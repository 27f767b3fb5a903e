"""Counts the draws of noise in this process, independently of the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dprecipe.training.checks.noise import DRAWS
from dprecipe.training.run import gate
from dprecipe.training.steps import noise, stepwise


def count_noisy_sums(count: Callable[[], object]) -> None:
    """Call `count` before the noise of every sum of a run is drawn.

    The checks before a run draw noise onto zeros and onto synthetic records, and are not counted.
    """
    rehearse, counts = stepwise.rehearse_step, True

    def counted(value: torch.Tensor, *terms: Any) -> torch.Tensor:
        if counts and len(value) != DRAWS:  # so many zeros does the check of the noise take
            count()
        return noise.add_noise(value, *terms)

    def uncounted(*given: Any) -> None:
        nonlocal counts
        counts = False
        try:
            rehearse(*given)
        finally:
            counts = True

    gate.add_noise = counted  # type: ignore[assignment]
    stepwise.rehearse_step = uncounted
