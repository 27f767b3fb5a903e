"""The steps of a projected descent in torch, on an accelerator.

The formulas and the double precision are those of the CPU. Blocks of features, and of noise from the same streams, are
copied to the device. Nothing is read back until it is needed, so steps queue up.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dprecipe.mechanisms.pnsgd.train.descent import Floats, Objective
from dprecipe.mechanisms.pnsgd.train.sets import Ball, Box, Simplex


@final
class DeviceBackend:
    """Steps in torch (`dprecipe.mechanisms.pnsgd.train.descent.Backend`)."""

    def __init__(self, objective: Objective, device: torch.device) -> None:
        self._objective = objective
        self._device = device
        within = objective.within
        if isinstance(within, Box):
            self._low, self._high = (
                torch.tensor(np.zeros(objective.shape) + end, device=device) for end in (within.low, within.high)
            )
        elif isinstance(within, Ball) and within.centre is not None:
            self._centre = torch.tensor(within.centre, device=device)

    def place(self, w: Floats) -> None:
        self._w = torch.tensor(w, device=self._device)

    def fetch(self) -> Floats:
        fetched: Floats = self._w.cpu().numpy().copy()
        return fetched

    def gradient(self, x_BD: Floats, y_B: NDArray[Any]) -> Tensor:
        return self._of(self._to_device(x_BD), self._to_device(y_B))

    def step(self, gradient: Tensor, shrink: float, noise_P: Floats) -> None:
        self._step(gradient, shrink, self._to_device(noise_P))

    def steps(self, x_TBD: Floats, y_TB: NDArray[Any], factor: float, shrink: float, noise_TP: Floats) -> None:
        batches = zip(self._to_device(x_TBD), self._to_device(y_TB), self._to_device(noise_TP), strict=True)
        for x_BD, y_B, noise_P in batches:
            self._step(self._of(x_BD, y_B).mul_(factor), shrink, noise_P)

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _of(self, x_BD: Tensor, y_B: Tensor) -> Tensor:
        gradient: Tensor = self._objective.gradient(self._w, x_BD, y_B, torch)
        return gradient

    def _step(self, gradient: Tensor, shrink: float, noise_P: Tensor) -> None:
        self._w.mul_(shrink).add_(gradient).add_(noise_P.reshape(gradient.shape))
        self._project(self._w)

    def _project(self, w: Tensor) -> None:
        """Does what `Objective.project` does, in torch."""
        within = self._objective.within
        match within:
            case Ball(centre=None):
                w.mul_(within.max_norm / w.norm().clamp_min(within.max_norm))
            case Ball():
                w.sub_(self._centre)
                w.mul_(within.max_norm / w.norm().clamp_min(within.max_norm)).add_(self._centre)
            case Box():
                torch.minimum(torch.maximum(w, self._low, out=w), self._high, out=w)
            case Simplex(total=total):
                falling = w.flatten().sort(descending=True).values
                excess = falling.cumsum(0) - total
                counts = torch.arange(1, len(falling) + 1, device=w.device)
                last = (falling * counts > excess).sum() - 1
                w.sub_(excess[last] / (last + 1)).clamp_(min=0.0)
