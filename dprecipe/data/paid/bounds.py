"""The public bounds that the values of features are clipped to before they are summed or ranked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ColumnBounds:
    """Finite bounds low < high, float64 (F,), of F features (of images: channels), int64 (F,)."""

    features: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def middle(self) -> NDArray[np.float64]:
        return self.low / 2 + self.high / 2

    @property
    def half(self) -> NDArray[np.float64]:
        return self.high / 2 - self.low / 2
