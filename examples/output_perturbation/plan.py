"""The plan: the loss, what is proved of it, how it is minimised, and the one event."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dprecipe.contract.plan import Length, Recorded, UsualPlan
from dprecipe.privacy.events import Charge
from output_perturbation.events import NoisyMinimum

SLACK = 1e-4
"""Part of the sensitivity that is left for a minimum that is not quite reached; rounding takes far less."""


@dataclass(frozen=True)
class OutputPerturbationPlan(UsualPlan):
    """One noisy minimum of the mean cross entropy of softmax regression plus (`l2`/2)‖w‖².

    Guarantees: gradient descent of `descent_steps` steps ends within SLACK/2 of `sensitivity` of the minimum, so that
    two neighbouring data sets end within `sensitivity`. Of a record with ‖x‖ <= R, softmax regression has gradients of
    norm at most √2 R, and a Hessian of at most R²/2. So minima are within √2 R/λ of 0 and, as the mean of n gradients
    moves by at most 2 √2 R/n, within 2 √2 R/(n λ) of each other; a step of 1/β contracts by 1 - λ/β, β = R²/2 + λ.
    Source: Chaudhuri, Monteleoni & Sarwate 2011, Lemma 7 and Corollary 8.
    """

    kind: ClassVar[str] = "output_perturbation"
    scheme: ClassVar[str] = "full_batch"
    size: int
    feature_norm: float
    bias: bool
    l2: float
    release: Recorded

    @property
    def events(self) -> tuple[Charge, ...]:
        return (self.release,)

    @property
    def length(self) -> Length:
        return Length(1, 1)

    @property
    def expected_batch(self) -> float:
        return float(self.size)

    @property
    def lipschitz(self) -> float:
        """√2 R: the bias is a further feature of 1."""
        return math.sqrt(2 * (self.feature_norm**2 + self.bias))

    @property
    def smoothness(self) -> float:
        return (self.feature_norm**2 + self.bias) / 2 + self.l2

    @property
    def sensitivity(self) -> float:
        """Δ: how far one replaced record moves what noise is added to."""
        return 2 * self.lipschitz / (self.size * self.l2) * (1 + SLACK)

    @property
    def noise_scale(self) -> float:
        event = self.release.event
        assert isinstance(event, NoisyMinimum)  # noqa: S101
        return event.noise_multiplier * self.sensitivity

    @property
    def descent_steps(self) -> int:
        """Steps from 0, known in advance: what the records say decides nothing."""
        return math.ceil(self.smoothness / self.l2 * math.log(2 * self.size / SLACK))

    def describe(self) -> list[tuple[str, str]]:
        return [
            ("loss", f"L = {self.lipschitz:.6g}, β = {self.smoothness:.6g}, λ = {self.l2:g}"),
            ("minimum", f"{self.descent_steps:,} steps; one record moves it by at most {self.sensitivity:.6g}"),
            ("noise", f"density ∝ exp(-‖b‖ / {self.noise_scale:.6g})"),
        ]


PLAN = OutputPerturbationPlan
