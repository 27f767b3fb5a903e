"""Filters of the noisy gradient: an estimate made of all that the steps released.

Formal guarantee: post-processing. An estimate is a function of noisy gradients and public constants. Where a filter
takes sums elsewhere than at the weights, that place is a function of earlier iterates, which are released: it is to a
step what the weights are, and the sum is clipped and noised as any other.

| kind | estimate after gradient t, from 0 | where the sum is taken |
|---|---|---|
| low-pass, decay a | m_t / c_t; m_t = a m_{t-1} + (1 - a) (g_t + g_{t-1}) / 2; c_t is that of gradients 1 | x_t |
| Kalman, gain κ | m_t = (1 - κ_t) m_{t-1} + κ_t g_t; κ_t = max(κ, 1 / (t + 1)) | x_t + (1/κ_t - 1) (x_t - x_{t-1}) |

The second is DiSK at the one γ, (1 - κ)/κ, for which its two gradients of a record are one. The earlier estimate is of
x_{t-1}; the place ahead makes up for it, exactly where the loss is quadratic.

Source: X. Zhang et al. 2025, "DiSK: Differentially Private Optimizer with Simplified Kalman Filter for Noise
Reduction"; X. Zhang et al. 2024, "DOPPLER: Differentially Private Optimizers with Low-pass Filter".
Legend: S trained numbers, or this process's shard of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from dprecipe.language.training import Kalman, LowPass
from dprecipe.training.steps.optimise import cut_like


class GradientFilter(ABC):
    """A filter, with all that it keeps between two steps."""

    names: tuple[str, str]
    """The names of its vectors."""

    def __init__(self) -> None:
        self.count = 0
        """Gradients that it has seen."""
        self.vectors: dict[str, Tensor] = {}
        """Vectors (S,) by name; empty before the first gradient."""

    @abstractmethod
    def estimate(self, gradient_S: Tensor) -> Tensor:
        """Returns (S,): the estimate after one more noisy gradient."""

    def note(self, weights: Sequence[nn.Parameter]) -> None:  # noqa: B027 -- not every filter looks at weights
        """Notes the weights before they move."""

    @property
    def is_ahead(self) -> bool:
        """True if the next sum is taken elsewhere than at the weights."""
        return False

    def lead(self, weights: Sequence[nn.Parameter]) -> None:  # noqa: B027 -- the same
        """Moves the weights to where the next sum is taken, if it is ahead."""

    def restore(self, count: int, vectors: Mapping[str, Tensor]) -> None:
        """Continues from what another attempt kept.

        Raises:
            ValueError: it is of another filter.
        """
        if set(vectors) != (set(self.names) if count else set()):
            raise ValueError("the state of another filter")
        self.count, self.vectors = count, dict(vectors)


@final
class LowPassFilter(GradientFilter):
    """See the module."""

    names = ("filtered", "gradient")

    def __init__(self, spec: LowPass) -> None:
        super().__init__()
        self._decay = spec.decay

    def estimate(self, gradient_S: Tensor) -> Tensor:
        gradient, decay = gradient_S.float(), self._decay
        if self.count:
            before = self.vectors["gradient"]
            filtered = self.vectors["filtered"].mul_(decay).add_(before, alpha=(1 - decay) / 2)
            filtered.add_(gradient, alpha=(1 - decay) / 2)
        else:
            filtered = gradient * ((1 - decay) / 2)
        self.vectors = {"filtered": filtered, "gradient": gradient}
        constant = 1 - decay**self.count * (1 + decay) / 2
        self.count += 1
        return filtered / constant


@final
class KalmanFilter(GradientFilter):
    """See the module."""

    names = ("filtered", "weights")

    def __init__(self, spec: Kalman) -> None:
        super().__init__()
        self._gain = spec.gain

    @property
    def _next_gain(self) -> float:
        return max(self._gain, 1 / (self.count + 1))

    def estimate(self, gradient_S: Tensor) -> Tensor:
        gradient, gain = gradient_S.float(), self._next_gain
        filtered = self.vectors["filtered"].lerp_(gradient, gain) if self.count else gradient
        self.vectors["filtered"] = filtered
        self.count += 1
        return filtered

    @torch.no_grad()
    def note(self, weights: Sequence[nn.Parameter]) -> None:
        self.vectors["weights"] = torch.nn.utils.parameters_to_vector(weights).detach()

    @property
    def is_ahead(self) -> bool:
        return self.count > 0

    @torch.no_grad()
    def lead(self, weights: Sequence[nn.Parameter]) -> None:
        for weight, before in zip(weights, cut_like(self.vectors["weights"], weights), strict=True):
            weight.add_(weight - before, alpha=1 / self._next_gain - 1)


def filter_of(spec: LowPass | Kalman | None) -> GradientFilter | None:
    """Returns the filter of a recipe, before any gradient; None where it has none."""
    if spec is None:
        return None
    return LowPassFilter(spec) if isinstance(spec, LowPass) else KalmanFilter(spec)
