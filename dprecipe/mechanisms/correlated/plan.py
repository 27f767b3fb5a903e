"""The plan of a run with correlated noise: one phase for each pass over the data, or one for all groups of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from dprecipe.contract.mechanism import MechanismPlan
from dprecipe.noisy_sum.clipped_plan import ClippedPlan
from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian
from dprecipe.privacy.correlation.strategies import Banded, PreviousStep, Strategy
from dprecipe.privacy.rounding import round_up


@dataclass(frozen=True)
class CorrelatedPlan(ClippedPlan):
    """A run with correlated noise; all of its events have one strategy."""

    kind: ClassVar[str] = "correlated"

    @property
    def first(self) -> CycleGaussian | BandedGaussian:
        """The first event.

        Raises:
            TypeError: it is of another kind.
        """
        event = self.phases[0].charge.event
        if isinstance(event, CycleGaussian | BandedGaussian):
            return event
        raise TypeError(f"an event of kind {event.kind} has no correlated noise")

    @property
    def draws_by_attempt(self) -> bool:
        """True: units keep their places in an attempt, and noise begins with it."""
        return True

    @property
    def cycles(self) -> tuple[CycleGaussian, ...]:
        """The events of the passes, in order; none where parts of the data take turns."""
        return tuple(e for charge in self.events if isinstance(e := charge.event, CycleGaussian))

    @property
    def strategy(self) -> Strategy:
        """The strategy by which noise is correlated."""
        return self.first.strategy

    @property
    def sensitivity(self) -> float:
        """S, the distance by which one unit moves what the fresh noise hides, in clip norms: in the whole run in a
        fixed order; each time that it takes part, of bands."""
        if isinstance(self.strategy, Banded):
            return round_up(self.strategy.norm)
        return round_up(math.sqrt(math.fsum(cycle.energy for cycle in self.cycles)))

    @property
    def noise_in_iterates(self) -> float:
        """The root of the mean square of the noise in the sums of all steps so far, in clip norms."""
        strategy, steps = self.strategy, self.length.steps
        if isinstance(strategy, PreviousStep):
            return round_up(self.first.noise_multiplier * noise_left(strategy.previous, steps))
        from dprecipe.privacy.correlation.series import rms_error

        return round_up(self.first.noise_multiplier * rms_error(strategy, steps))

    @property
    def independent_noise(self) -> float:
        """The same, in a fixed order, of noise that is independent over steps and as private."""
        multiplier = self.first.noise_multiplier * math.sqrt(len(self.cycles)) / self.sensitivity
        return round_up(multiplier * noise_left(0.0, self.length.steps))

    @property
    def step_deviation(self) -> float:
        """The standard deviation of the noise of the last step, over that of its fresh noise."""
        strategy = self.strategy
        if isinstance(strategy, PreviousStep):
            return math.hypot(1.0, strategy.previous)
        from dprecipe.privacy.correlation.series import last_deviation

        return round_up(last_deviation(strategy, self.length.steps))

    def describe(self) -> list[tuple[str, str]]:
        name = "clip norm" if self.clip.norms is None or len(set(self.clip.norms)) == 1 else "clip norms"
        event = self.first
        fresh = f"{event.noise_multiplier:g} × {name} {self.format_norms()}, fresh in each step"
        rows = self._describe_bands(event, fresh) if isinstance(event, BandedGaussian) else self._describe_passes(fresh)
        return [*rows, *super().describe()]

    def _describe_passes(self, fresh: str) -> Iterator[tuple[str, str]]:
        batches = self.cycles[0].batches
        yield "steps", f"{self.length.steps:,}, {len(self.cycles):,} passes of {batches:,}"
        yield "expected batch", f"{self.expected_batch:g}"
        block = self.cycles[0].block_size
        units = "each unit" if block is None else f"each block of {block:,} units"
        yield "sampling", f"{units} in one of the {batches:,} steps of a pass, the same in all passes"
        yield "noise multiplier", fresh
        yield "taken back", f"λ = {self.cycles[0].previous:g} of the fresh noise of the step before"
        independent = f"independent noise of the same ε: {self.independent_noise:g}"
        yield "noise in iterates", f"{self.noise_in_iterates:g} clip norms; {independent}"

    def _describe_bands(self, event: BandedGaussian, fresh: str) -> Iterator[tuple[str, str]]:
        bands, (group,) = event.strategy.bands, self.events
        yield "steps", f"{self.length.steps:,}, {group.count:,} groups of {len(bands):,}"
        yield "expected batch", f"{self.expected_batch:g}"
        yield "sampling", f"each step from one of {len(bands):,} parts in turn, at rate {event.part_rate:.6g}"
        yield "noise multiplier", fresh
        shares = ", ".join(f"{c:.4g}" for c in bands[1:9]) + (", …" if len(bands) > 9 else "")
        yield "taken back", f"{shares or 'nothing'} of the noise of the steps before, which stays in memory"
        yield "noise in iterates", f"{self.noise_in_iterates:g} clip norms"


def noise_left(previous: float, steps: int) -> float:
    """Returns the root of the mean variance of z_0 + … + z_t - λ (z_0 + … + z_{t-1}), t = 0 … `steps` - 1: the mean of
    1 + t (1 - λ)²."""
    return math.sqrt(1 + (steps - 1) / 2 * (1 - previous) ** 2)


PLAN: type[MechanismPlan] = CorrelatedPlan
