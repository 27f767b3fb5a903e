"""Images, one of them with a strange number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def spoil_one(images: NDArray[np.float32], value: float) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Returns images (N, C, H, W) with a value in the eighth, and which ones are as they were, (N,)."""
    strange = images.copy()
    strange[7, 0, 3, 3] = value
    return strange, np.arange(len(images)) != 7
