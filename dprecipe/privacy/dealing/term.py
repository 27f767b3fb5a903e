"""One log-normal term on a grid."""

from __future__ import annotations

import numpy as np
from scipy import special

from dprecipe.privacy.loss import Array


def spread_term(points_K: Array, mu: float) -> tuple[Array, float]:
    """Returns Q-masses of X = exp(μ z - μ²/2), z normal, at increasing points >= 0, and the part of the mean of X that
    is beyond the last point.

    Each cell between two points is split over them so that its mass and mean are kept. What is above the last point is
    put there; what is below the first is left out.
    """
    with np.errstate(divide="ignore"):
        z_K = np.log(points_K) / mu + mu / 2
    q_K, p_K = _take_cells(z_K), _take_cells(z_K - mu)
    upper_K = np.clip((p_K - points_K[:-1] * q_K) / np.diff(points_K), 0.0, q_K)
    masses_K = np.zeros(len(points_K))
    masses_K[:-1] += q_K - upper_K
    masses_K[1:] += upper_K
    outside = float(special.ndtr(-z_K[-1]))
    masses_K[-1] += outside
    return masses_K, max(0.0, float(special.ndtr(mu - z_K[-1])) - float(points_K[-1]) * outside)


def _take_cells(z_K: Array) -> Array:
    """Returns the normal mass between neighbours, each from the tail where nothing cancels."""
    above_K, below_K = special.ndtr(-z_K), special.ndtr(z_K)
    cells_K: Array = np.maximum(np.where(z_K[:-1] > 0, above_K[:-1] - above_K[1:], below_K[1:] - below_K[:-1]), 0.0)
    return cells_K
