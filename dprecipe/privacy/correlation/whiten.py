"""Whitening: from sums with correlated noise to sums with fresh noise alone, step by step."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.correlation.strategies import Strategy

if TYPE_CHECKING:
    from torch import Tensor

Vector = TypeVar("Vector", NDArray[np.float64], "Tensor")


@final
class Whitener(Generic[Vector]):
    """Multiplies the vectors of a run by C, in turn: of noise w = C⁻¹ z it leaves the draws z. The first is taken for
    the first of an attempt. Independent noise (no strategy) stays as it is."""

    def __init__(self, strategy: Strategy | None) -> None:
        self._strategy = strategy
        self._bands, self._taps = ((1.0,), (1.0,)) if strategy is None else (strategy.bands, strategy.taps)
        self._taken: deque[Vector] = deque(maxlen=len(self._bands) - 1)
        self._white: deque[Vector] = deque(maxlen=len(self._taps) - 1)

    def copy(self) -> Whitener[Vector]:
        """Returns another one that has taken the same vectors."""
        other: Whitener[Vector] = Whitener(self._strategy)
        other._taken, other._white = self._taken.copy(), self._white.copy()
        return other

    def take(self, vector: Vector) -> Vector:
        """Returns the next vector, whitened: Σ bands_j y_{t-j} - Σ taps_j (C y)_{t-j}, the latter from j = 1 on."""
        if self._strategy is None:
            return vector
        white = vector = 1.0 * vector  # a copy: the caller goes on with its own
        for weight, before in zip(self._bands[1:], reversed(self._taken), strict=False):  # fewer, at first
            white = white + weight * before
        for weight, before in zip(self._taps[1:], reversed(self._white), strict=False):
            white = white - weight * before
        self._taken.append(vector)
        self._white.append(white)
        return white
