"""A noisy sum that one unit moves within a box: its definition, and the base class of its events.

It has all that can be computed without numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from dprecipe.noise import families
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Event
from dprecipe.privacy.questions import NoisyBox, Question
from dprecipe.privacy.sampling import PoissonBatch, Sampling

if TYPE_CHECKING:
    from dprecipe.noise.distributions import Distribution
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair

Shifts = tuple[tuple[float, int], ...]
"""Pairs (bound of a coordinate's magnitude over the sensitivity, number of coordinates that have it), with increasing
bounds."""

FISHER_INFORMATION = {"laplace": 1.0, "cauchy": 0.5}
"""Fisher information at scale 1 of the families for which Gaussian noise of the same information provably costs no
less."""


@dataclass(frozen=True, slots=True)
class BoxSum:
    """A noisy sum to which each unit adds a vector within a box, independently with probability `sampling_rate` (1: all
    take part). The noise on each coordinate has a symmetric distribution that falls with distance.

    `shifts` is the box; which coordinate has which bound may depend on the unit. `noise_multiplier` is the noise's
    scale over the sensitivity that `shifts` refer to; `family` and `shape` name its distribution.

    `exchanged`: a unit does not add a vector but exchanges one for another. Both lie in half of the box, each with the
    bounds in an order of its own.

    | case | |
    |---|---|
    | a bound of 0 | the coordinate reveals nothing |
    | one coordinate | a noisy sum of numbers |
    | gaussian noise | refused: only the L2 norm matters, and `poisson_gaussian` covers it |
    """

    sampling_rate: float
    noise_multiplier: float
    family: str
    shape: float | None
    shifts: Shifts
    exchanged: bool = False

    @property
    def dimension(self) -> int:
        """The number of coordinates of the sum."""
        return sum(count for _, count in self.shifts)

    @property
    def max_loss(self) -> float:
        """The largest loss of any outcome when a unit is added or removed; finite only with Laplace noise: at most the
        L1 norm of the shift over the scale."""
        if self.family != "laplace":
            return math.inf
        whole = math.fsum(bound * count for bound, count in self.shifts) / self.noise_multiplier
        return whole if self.sampling_rate == 1 or whole > 600 else math.log1p(self.sampling_rate * math.expm1(whole))

    def gaussian_multiplier(self, information: float) -> float:
        """Returns the noise multiplier of Gaussian noise, on a sum bounded in L2 norm, with the same Fisher
        information; `information` is that of this noise at scale 1."""
        return self.noise_multiplier / (math.sqrt(information) * _norm(self.shifts))

    def screening_bound(self) -> tuple[float, float] | None:
        """Returns (q, σ): see `Event.screening_bound`.

        Source: log M_k(τ) <= k(k-1)/2 I τ², for laplace (in any sum) because a pure ε costs ε²/2 in
        zero-concentrated privacy (Bun and Steinke 2016, Proposition 3.3), for cauchy from Legendre's equation
        (docs/explanation/encoding.md).
        """
        information = FISHER_INFORMATION.get(self.family)
        return None if information is None else (self.sampling_rate, self.gaussian_multiplier(information))


@lru_cache(maxsize=8)
def _norm(shifts: Shifts) -> float:
    return math.sqrt(math.fsum(count * bound * bound for bound, count in shifts))


def check_noise(family: str, shape: float | None) -> None:
    """Checks the noise of an event within a box.

    Raises:
        ValueError: there is no such distribution, or it is Gaussian.
    """
    families.check(family, shape)
    if family == "gaussian":
        raise ValueError("a sum within a box with Gaussian noise is a poisson_gaussian event")


class BoxEvent(Event):
    """A noisy sum of a Poisson batch that one unit moves within a box. Subclasses say which `box`.

    Formal guarantee: that of the corner of the box (`privacy.box`), for adding or removing a unit. Replacing a unit is
    accounted by group privacy, as removing one and adding another.
    """

    __slots__ = ()
    cross_check_tolerance: ClassVar[tuple[float, float]] = (2e-2, 2e-3)
    """The tolerance of the cross-check, whose grids are as fine as time allows: over random distributions, boxes, rates
    and numbers of steps, its ε was at most 0.3 % above ours."""

    @property
    def box(self) -> BoxSum:
        """The release as a sum within a box."""
        raise NotImplementedError(self.kind)

    @property
    def participation(self) -> float:
        return self.box.sampling_rate

    @property
    def max_loss(self) -> float:
        return self.box.max_loss

    def needs_group_privacy(self, relation: Neighbouring) -> bool:
        return relation is Neighbouring.REPLACE_ONE

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.privacy.box.curves import box_curve

        return box_curve(self.box, orders)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        from dprecipe.privacy.box.pairs import box_losses

        return box_losses(self.box, step, tail)

    def sampling(self) -> Sampling:
        return PoissonBatch(self.box.sampling_rate)

    def cross_check(self) -> Question:
        return NoisyBox(self.box)

    def noise_distribution(self) -> Distribution:
        from dprecipe.noise.distributions import Distribution

        return Distribution(self.box.family, self.box.shape)
