"""Events of noisy sums whose noise is correlated over steps: the group of steps that is charged at once is one event.

`noise_multiplier` is that of the *fresh* noise of a step. The noise of earlier steps comes in addition, as the event's
`strategy` says; what is left of it in the iterates is less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from dprecipe.language.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.correlation.recheck import compute_pass_energy
from dprecipe.privacy.correlation.strategies import MAX_BANDS, Banded, PreviousStep
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Event, Rate, check_positive, check_rate
from dprecipe.privacy.grouped_sums import JointEvent
from dprecipe.privacy.noisy_sums import Gaussian, GaussianEvent, PoissonGaussian
from dprecipe.privacy.questions import GaussianSum, Question
from dprecipe.privacy.sampling import CyclicPoisson, FixedOrder, Sampling


@register_event
@dataclass(frozen=True, slots=True)
class CycleGaussian(GaussianEvent):
    """A pass of `batches` steps over all units in a fixed order, where each step takes back the share `previous` (λ) of
    the fresh noise of the step before. `number`: the passes of the same order and noise before it. `block_size`: how
    many consecutive units have one place, if places are those of blocks.

    A pass that ends early has released less, and is charged for all of it. A number above the true one costs more.

    Formal guarantee: whatever was released before, a Gaussian mechanism of μ = sqrt(Q)/`noise_multiplier` for adding,
    removing or zeroing out a unit and twice that for replacing one, with Q = `PreviousStep.pass_energy`; tight. The
    place of a unit in the order depends on no record, and under add-or-remove-one on no other unit: with blocks that
    relation has no guarantee, and is refused beforehand. Noise may begin again before any pass, and the order may
    change then. Source: docs/explanation/accounting.md#correlated-noise.
    """

    kind: ClassVar[str] = "cycle_gaussian"
    noise_multiplier: PositiveFloat
    previous: Annotated[float, Field(ge=0, le=1)]
    batches: PositiveInt
    number: NonNegativeInt
    block_size: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier, batches=self.batches)
        if not self.number >= 0:
            raise ValueError(f"expected number >= 0, got {self.number}")
        PreviousStep(self.previous)

    @property
    def strategy(self) -> PreviousStep:
        """The strategy that gives the noise of each step."""
        return PreviousStep(self.previous)

    @property
    def energy(self) -> float:
        """The squared distance Q by which a unit moves the pass, in clip norms."""
        return self.strategy.pass_energy(self.batches, self.number)

    @property
    def steps(self) -> int:
        return self.batches

    def squared_mu(self, count: int, relation: Neighbouring) -> float:
        return self.energy * Gaussian(self.noise_multiplier).squared_mu(count, relation)

    def together(self, size: int, relation: Neighbouring) -> Event:
        return replace(self, noise_multiplier=self.noise_multiplier / size)

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return self.stand_in().screening_bound(relation)

    def stand_in(self) -> Event:
        return Gaussian(self.noise_multiplier / math.sqrt(self.energy))

    def sampling(self) -> Sampling:
        return FixedOrder(self.batches, self.block_size)

    def cross_check(self) -> Question:
        energy = compute_pass_energy(self.previous, self.batches, self.number)
        return GaussianSum(self.noise_multiplier / math.sqrt(energy))

    def describe_sensitivity(self) -> str:
        return f"the sum of one of {self.batches:,} steps by 1 in L2 norm"


@register_event
@dataclass(frozen=True, slots=True)
class BandedGaussian(JointEvent):
    """As many steps as there are `coefficients`, the first column of a banded matrix that correlates their noise. Each
    unit is in one of as many parts; step t draws from part t, at `part_rate`.

    A run of n steps is charged ⌈n/b⌉ of these for b coefficients, each when its first step is taken. What a unit adds
    to a step shows in b rows of C x, and so in the next event, too: there is no bound for half of an event.

    Formal guarantee: the events of an attempt together are dominated by as many `PoissonGaussian` of rate `part_rate`
    and multiplier `noise_multiplier`/‖c‖, c the coefficients. Parts are drawn for each unit uniformly, independently of
    all else, once an attempt. Batches drawn from all units instead have no such bound. Source: docs/explanation/
    accounting.md#correlated-noise; Choquette-Choo et al. 2023 (arXiv 2306.08153), Theorem 4.
    """

    kind: ClassVar[str] = "banded_gaussian"
    noise_multiplier: PositiveFloat
    part_rate: Rate
    coefficients: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1, max_length=MAX_BANDS)]

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)
        check_rate(self.part_rate)
        Banded(self.coefficients)

    @property
    def strategy(self) -> Banded:
        """The strategy that gives the noise of each step."""
        return Banded(self.coefficients)

    @property
    def joint(self) -> PoissonGaussian:
        return PoissonGaussian(self.part_rate, self.noise_multiplier / self.strategy.norm)

    @property
    def steps(self) -> int:
        return len(self.coefficients)

    @property
    def line_weight(self) -> int:
        return 1 + len(self.coefficients) // 8

    def together(self, size: int, relation: Neighbouring) -> Event | None:
        """Returns no event for a group whose members may be in different parts: their steps overlap in the noise."""
        if self.part_rate == 1 or len(self.coefficients) == 1:
            return self.joint.together(size, relation)
        return None

    def sampling(self) -> Sampling:
        return CyclicPoisson(len(self.coefficients), self.part_rate)

    def cross_check(self) -> Question:
        return GaussianSum(self.noise_multiplier / math.hypot(*self.coefficients), self.part_rate)

    def describe_sensitivity(self) -> str:
        parts = len(self.coefficients)
        return f"the sum of one of {parts:,} steps by 1 in L2 norm" if parts > 1 else "the sum by 1 in L2 norm"
