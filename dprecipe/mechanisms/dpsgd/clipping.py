"""Clipping as the run applies it, and the scale of noise that follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PlannedAdaptation:
    """The adaptation of a clip norm, which follows a quantile of the gradients' norms."""

    quantile: float
    learning_rate: float
    count_noise: float
    """σ_b, in units: the deviation of the noise on the count of gradients within the norm."""


@dataclass(frozen=True, slots=True)
class PlannedClip:
    """The bound on each unit's gradient; the clip norm itself belongs to the phase."""

    mode: Literal["flat", "per_layer", "automatic", "adaptive"]
    norm_kind: Literal["l2", "l1"]
    norms: tuple[float, ...] | None = None
    """The norm of each layer over the phase's clip norm; `None` if one norm holds for all parameters, or is split over
    layers that only the model knows."""
    groups: tuple[int, ...] | None = None
    """The number of layers in each group, if layers are clipped in groups; `norms` are then those of groups."""
    stability: float | None = None
    """γ of automatic clipping."""
    adaptation: PlannedAdaptation | None = None
    """The adaptation of an adaptive norm; `None` for other clipping."""

    def noise_scale(self, clip_norm: float, multiplier: float) -> float:
        """Returns the scale of the noise on a coordinate of the gradients' sum, in the layer with the most noise; for
        Gaussian noise, the standard deviation."""
        if self.adaptation is not None:
            return gradient_multiplier(multiplier, self.adaptation.count_noise) * clip_norm
        if self.norms is None:
            return multiplier * clip_norm
        count = len(self.norms)
        return multiplier * clip_norm * (count if self.norm_kind == "l1" else math.sqrt(count)) * max(self.norms)


def gradient_multiplier(joint: float, count_noise: float) -> float:
    """Returns z_Δ, the noise multiplier of the gradients in a joint release with a count of units.

    1/z² = 1/z_Δ² + 1/(2 σ_b)². `joint` is z, the multiplier of the release; `count_noise` is σ_b, in units. The count
    adds ½ or -½ for each unit, so one unit moves it by ½. Source: Andrew et al. 2021, Theorem 1.

    Raises:
        ValueError: z >= 2 σ_b: the count by itself leaks more than the release may.
    """
    remainder = 1 - (joint / (2 * count_noise)) ** 2
    if not remainder > 0:
        raise ValueError(f"noise of {count_noise} on the count leaves nothing for the gradients")
    return joint / math.sqrt(remainder)
