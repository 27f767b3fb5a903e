"""Clipping as a run takes it, and what it makes of the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PlannedAdaptation:
    """How a clip norm follows a quantile of the gradients' norms."""

    quantile: float
    learning_rate: float
    count_noise: float
    """σ_b, in units: the deviation of the noise on the count of gradients within the norm."""


@dataclass(frozen=True, slots=True)
class PlannedClip:
    """How each unit's gradient is bounded; the clip norm itself is that of the phase."""

    mode: Literal["flat", "per_layer", "automatic", "adaptive"]
    norm_kind: Literal["l2", "l1"]
    norms: tuple[float, ...] | None = None
    """Of each layer, over the phase's clip norm; `None` where one norm holds for all parameters, or is shared out over
    layers that only the model itself knows."""
    stability: float | None = None
    """γ of automatic clipping."""
    adaptation: PlannedAdaptation | None = None
    """Of an adaptive norm."""

    def noise_scale(self, clip_norm: float, multiplier: float) -> float:
        """Scale of the noise on a coordinate of the gradients' sum (of Gaussian noise, its deviation), in the layer
        that has most of it."""
        if self.adaptation is not None:
            return gradient_multiplier(multiplier, self.adaptation.count_noise) * clip_norm
        if self.norms is None:
            return multiplier * clip_norm
        count = len(self.norms)
        return multiplier * clip_norm * (count if self.norm_kind == "l1" else math.sqrt(count)) * max(self.norms)


def gradient_multiplier(joint: float, count_noise: float) -> float:
    """z_Δ, the noise multiplier of the gradients alone, where they and a count of units are one release of multiplier
    `joint` z: 1/z² = 1/z_Δ² + 1/(2 σ_b)².

    The count adds ½ or -½ a unit, so that one unit moves it by ½. Source: Andrew et al. 2021, Theorem 1.

    Raises:
        ValueError: z >= 2 σ_b: the count alone tells more than that.
    """
    rest = 1 - (joint / (2 * count_noise)) ** 2
    if not rest > 0:
        raise ValueError(f"noise of {count_noise} on the count leaves nothing for the gradients")
    return joint / math.sqrt(rest)
