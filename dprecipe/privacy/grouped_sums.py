"""Noisy sums in groups of coordinates, each with its own norm and noise: one Gaussian release.

Edge cases are those of `events.Event`; one group is a `PoissonGaussian`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dprecipe.language.base import PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Event, Rate, check_positive, check_rate
from dprecipe.privacy.noisy_sums import PoissonGaussian
from dprecipe.privacy.questions import GaussianSum, Question
from dprecipe.privacy.sampling import EveryUnit, PoissonBatch, Sampling

if TYPE_CHECKING:
    from dprecipe.noise.distributions import Distribution
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair


class JointEvent(Event):
    """The base class of events whose sums together are one sum of Poisson batches with Gaussian noise, `joint`."""

    __slots__ = ()
    integrates: ClassVar[bool] = True

    @property
    def joint(self) -> PoissonGaussian:
        """The one sum."""
        raise NotImplementedError(self.kind)

    @property
    def participation(self) -> float:
        return self.joint.participation

    def squared_mu(self, count: int, relation: Neighbouring) -> float | None:
        return self.joint.squared_mu(count, relation)

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        return self.joint.rdp(orders, relation)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        return self.joint.losses(relation, step, tail)

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return self.joint.screening_bound(relation)

    def stand_in(self) -> Event:
        return self.joint

    def noise_distribution(self) -> Distribution:
        return self.joint.noise_distribution()


@register_event
@dataclass(frozen=True, slots=True)
class GroupedGaussian(JointEvent):
    """A `PoissonGaussian` whose sum is in groups of coordinates, each with its own norm C_g and noise multiplier z_g: a
    unit's contribution to a group has norm at most C_g, and the group's noise has standard deviation z_g C_g.

    `groups`: (z_g, number of groups in a row that have it), in order. The groups share one batch.

    Formal guarantee: that of `PoissonGaussian` at 1/sqrt(Σ 1/z_g²). In units of each group's deviation one unit moves
    the whole sum by at most sqrt(Σ (C_g / z_g C_g)²) in L2 norm; noise is 1 on each coordinate, so it is one Gaussian.
    Source: Abadi et al. 2016, section 3.2; McMahan et al. 2018, "A general approach", section 2.
    """

    kind: ClassVar[str] = "grouped_gaussian"
    sampling_rate: Rate
    groups: tuple[tuple[PositiveFloat, PositiveInt], ...]

    def __post_init__(self) -> None:
        check_rate(self.sampling_rate)
        if not self.groups:
            raise ValueError("expected at least one group")
        for multiplier, count in self.groups:
            check_positive(groups=multiplier, count=count)

    @classmethod
    def of(cls, sampling_rate: float, multipliers: Sequence[float]) -> GroupedGaussian:
        """Returns the event of groups with these multipliers, in order."""
        runs = ((multiplier, len(list(equal))) for multiplier, equal in itertools.groupby(multipliers))
        return cls(sampling_rate, tuple(runs))

    @property
    def group_multipliers(self) -> tuple[float, ...]:
        """The multiplier z_g of each group."""
        return tuple(float(multiplier) for multiplier, count in self.groups for _ in range(count))

    @property
    def noise_multiplier(self) -> float:
        """The multiplier z of all groups together."""
        return 1 / math.sqrt(math.fsum(count / float(multiplier) ** 2 for multiplier, count in self.groups))

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares z / z_g of the groups; their squares add up to 1."""
        joint = self.noise_multiplier
        return tuple(joint / multiplier for multiplier in self.group_multipliers)

    @property
    def joint(self) -> PoissonGaussian:
        return PoissonGaussian(self.sampling_rate, self.noise_multiplier)

    def scale_noise(self, factor: float) -> Event:
        return GroupedGaussian(self.sampling_rate, tuple((z * factor, count) for z, count in self.groups))

    @property
    def line_weight(self) -> int:
        return 1 + len(self.groups) // 8

    def sampling(self) -> Sampling:
        return EveryUnit() if self.sampling_rate == 1 else PoissonBatch(self.sampling_rate)

    def cross_check(self) -> Question:
        return GaussianSum(
            1 / math.hypot(*(1 / multiplier for multiplier in self.group_multipliers)), self.sampling_rate
        )

    def describe_sensitivity(self) -> str:
        return f"each of {len(self.shares):,} parts of the sum by 1 in L2 norm, with noise of its own"
