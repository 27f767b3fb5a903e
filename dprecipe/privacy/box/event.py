"""The base class of events that are noisy sums within a box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.box.box import BoxSum
from dprecipe.privacy.events import Event
from dprecipe.privacy.questions import NoisyBox, Question
from dprecipe.privacy.sampling import PoissonBatch, Sampling

if TYPE_CHECKING:
    from dprecipe.noise.distributions import Distribution
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair


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
