"""Counts the draws of noise in this process, independently of the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dprecipe.training.checks import noise as noise_checks
from dprecipe.training.run import gate
from dprecipe.training.steps import noise, stepwise


def count_noisy_sums(count: Callable[[], object]) -> None:
    """Call `count` before the noise of every sum of a run is drawn.

    The checks before a run draw noise onto zeros and onto synthetic records, and are not counted.
    """
    counts = True

    def counted(value: torch.Tensor, *terms: Any) -> torch.Tensor:
        if counts:
            count()
        return noise.add_noise(value, *terms)

    def uncounted(check: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            nonlocal counts
            counts = False
            try:
                return check(*given, **named)
            finally:
                counts = True

        return run

    gate.add_noise = counted  # type: ignore[assignment]
    stepwise.rehearse_step = uncounted(stepwise.rehearse_step)
    noise_checks._draw_noises = uncounted(noise_checks._draw_noises)
