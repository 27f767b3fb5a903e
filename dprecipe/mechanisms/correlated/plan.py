"""The plan of a run with correlated noise: one phase for each pass over the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dprecipe.contract.mechanism import MechanismPlan
from dprecipe.noisy_sum.clipped_plan import ClippedPlan
from dprecipe.privacy.correlated_sums import CycleGaussian
from dprecipe.privacy.rounding import round_up


@dataclass(frozen=True)
class CorrelatedPlan(ClippedPlan):
    """A run with correlated noise, pass by pass."""

    kind: ClassVar[str] = "correlated"

    @property
    def cycles(self) -> tuple[CycleGaussian, ...]:
        """The events of the passes, in order."""
        return tuple(e for charge in self.events if isinstance(e := charge.event, CycleGaussian))

    @property
    def previous(self) -> float:
        """λ, the share of a step's fresh noise that the next step takes back."""
        return self.cycles[0].previous

    @property
    def sensitivity(self) -> float:
        """S, the distance by which one unit moves what the fresh noise of the whole run hides, in clip norms."""
        return round_up(math.sqrt(math.fsum(cycle.energy for cycle in self.cycles)))

    @property
    def noise_in_iterates(self) -> float:
        """The root of the mean square of the noise in the sums of all steps so far, in clip norms."""
        return round_up(self.cycles[0].noise_multiplier * noise_left(self.previous, self.length.steps))

    @property
    def independent_noise(self) -> float:
        """The same, of noise that is independent over steps and as private, in the same order."""
        multiplier = self.cycles[0].noise_multiplier * math.sqrt(len(self.cycles)) / self.sensitivity
        return round_up(multiplier * noise_left(0.0, self.length.steps))

    def describe(self) -> list[tuple[str, str]]:
        first = self.cycles[0]
        name = "clip norm" if self.clip.norms is None or len(set(self.clip.norms)) == 1 else "clip norms"
        return [
            ("steps", f"{self.length.steps:,}, {len(self.cycles):,} passes of {first.batches:,}"),
            ("expected batch", f"{self.expected_batch:g}"),
            ("sampling", f"each unit in one of the {first.batches:,} steps of a pass, the same in all passes"),
            ("noise multiplier", f"{first.noise_multiplier:g} × {name} {self.format_norms()}, fresh in each step"),
            ("taken back", f"λ = {self.previous:g} of the fresh noise of the step before"),
            (
                "noise in iterates",
                f"{self.noise_in_iterates:g} clip norms; independent noise of the same ε: {self.independent_noise:g}",
            ),
            *super().describe(),
        ]


def noise_left(previous: float, steps: int) -> float:
    """Returns the root of the mean variance of z_0 + … + z_t - λ (z_0 + … + z_{t-1}), t = 0 … `steps` - 1: the mean of
    1 + t (1 - λ)²."""
    return math.sqrt(1 + (steps - 1) / 2 * (1 - previous) ** 2)


PLAN: type[MechanismPlan] = CorrelatedPlan
