"""The events of votes, and their cost. Formulas are imported inside methods, to keep this light.

Each unit belongs to one voter, so adding, removing, replacing or zeroing out a unit moves at most one vote from one
class to another: two counts by 1 each. These events cost the same under every relation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from dprecipe.language.base import PositiveFloat
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.box.box import BoxSum
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Event, check_positive, one_of
from dprecipe.privacy.questions import NoisyCounts, Question, RenyiCurve

if TYPE_CHECKING:
    from dprecipe.noise.distributions import Distribution
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair


class VotesEvent(Event):
    """An event in which a unit moves at most one vote, whichever way the unit changes."""

    __slots__ = ()

    def accounted_under(self, relation: Neighbouring) -> Neighbouring:
        return Neighbouring.ADD_OR_REMOVE_ONE


@register_event
@dataclass(frozen=True, slots=True)
class NoisyMax(VotesEvent):
    """The class with the most votes, noise added to the count of each.

    `noise_multiplier` is the noise's scale in votes: for `gaussian` its standard deviation, for `laplace` its scale
    parameter.

    Formal guarantee: that of the noisy counts. A moved vote changes two of them by 1: with Gaussian noise, that is
    √2/σ-GDP; with Laplace noise, a box of two coordinates. The choice of the largest is post-processing. Source:
    Papernot et al. 2018, Proposition 8. It costs the same together with events accounted under replace-one: whichever
    way a unit changes, one vote moves, and the pair is its own mirror image.
    """

    kind: ClassVar[str] = "noisy_max"
    family: Annotated[str, one_of("gaussian", "laplace")]
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)
        if self.family not in ("gaussian", "laplace"):
            raise ValueError(f"expected family gaussian or laplace, got {self.family!r}")

    @property
    def box(self) -> BoxSum:
        """Two counts under Laplace noise.

        Raises:
            TypeError: the noise is Gaussian, whose cost is `squared_mu`.
        """
        if self.family != "laplace":
            raise TypeError(f"{self.family} noise has no losses that are bounded by a box")
        return BoxSum(1.0, self.noise_multiplier, "laplace", None, ((1.0, 2),))

    def squared_mu(self, count: int, relation: Neighbouring) -> float | None:
        return 2 * count / float(self.noise_multiplier) ** 2 if self.family == "gaussian" else None

    @property
    def max_loss(self) -> float:
        return self.box.max_loss if self.family == "laplace" else math.inf

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.privacy.box.curves import box_curve

        return box_curve(self.box, orders)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        from dprecipe.privacy.box.pairs import box_losses

        return box_losses(self.box, step, tail)

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        """Two counts cost twice what one does, for either noise."""
        return 1.0, self.noise_multiplier / math.sqrt(2)

    def cross_check(self) -> Question:
        return NoisyCounts(self.family, self.noise_multiplier, 2)

    def noise_distribution(self) -> Distribution:
        from dprecipe.noise.distributions import Distribution

        return Distribution(self.family)

    def describe_sensitivity(self) -> str:
        return f"one vote: two counts by 1 each; {self.family} noise"


@dataclass(frozen=True, slots=True)
class UnitGaussian(VotesEvent):
    """A Gaussian release of sensitivity 1; `noise_multiplier` is the noise's standard deviation, in votes.

    *Guarantees*: 1/σ-GDP. `noise_multiplier` must be finite and above 0, or construction raises `ValueError`.
    """

    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)

    def squared_mu(self, count: int, relation: Neighbouring) -> float:
        return count / float(self.noise_multiplier) ** 2

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return 1.0, self.noise_multiplier

    def cross_check(self) -> Question:
        return NoisyCounts("gaussian", self.noise_multiplier, 1)


@register_event
@dataclass(frozen=True, slots=True)
class NoisyThreshold(UnitGaussian):
    """A check if the largest count of votes, minus a public constant for each class, reaches a threshold after noise.

    *Guarantees*: 1/σ-GDP, because one moved vote moves the largest count by at most 1.
    """

    kind: ClassVar[str] = "noisy_threshold"
    decides_sequel: ClassVar[bool] = True

    def noise_distribution(self) -> Distribution:
        from dprecipe.noise.distributions import Distribution

        return Distribution("gaussian")

    def describe_sensitivity(self) -> str:
        return "one vote: the largest count by at most 1"


@register_event
@dataclass(frozen=True, slots=True)
class FilterRest(UnitGaussian):
    """The part of a filter's limit that a run did not use, charged as one Gaussian release.

    *Guarantees*: 1/σ-GDP, jointly with the events that ran. Earlier results decide which events come next, so the sum
    of what ran is not a bound that is known in advance. The filter's limit is one, so the rest counts as spent
    (`theory.filter`).
    """

    kind: ClassVar[str] = "filter_rest"
    decides_sequel: ClassVar[bool] = True

    def describe_sensitivity(self) -> str:
        return "whatever the filter still allowed: as much as this noise, by 1"


@register_event
@dataclass(frozen=True, slots=True)
class SanitisedCost(VotesEvent):
    """A cost that depends on the votes, with Gaussian noise of `noise_multiplier` times its `beta`-smooth sensitivity.

    The logarithm of that sensitivity is released with it: it moves by at most `beta`, and gets Gaussian noise of
    `scale_multiplier` times `beta`. The sensitivity is to one moved vote per query.

    Formal guarantee: the Rényi curve of both (`theory.sanitise.gnss`), finite below the order 1/(1 - exp(-2 beta)); no
    loss distribution is known.
    """

    kind: ClassVar[str] = "sanitised_cost"
    has_losses: ClassVar[bool] = False
    beta: PositiveFloat
    noise_multiplier: PositiveFloat
    scale_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(beta=self.beta, noise_multiplier=self.noise_multiplier, scale_multiplier=self.scale_multiplier)

    @property
    def max_order(self) -> float:
        return -1 / math.expm1(-2 * self.beta)

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.mechanisms.pate.theory import sanitise  # needs scipy

        return sanitise.cost_curve(orders, self.beta, self.noise_multiplier, self.scale_multiplier)

    def cross_check(self) -> Question:
        from dprecipe.mechanisms.pate.theory import sanitise_recheck

        return RenyiCurve(
            lambda orders: sanitise_recheck.renyi_divergences(
                self.beta, self.noise_multiplier, self.scale_multiplier, orders
            ),
            sanitise_recheck.max_order(self.beta),
        )

    def describe_sensitivity(self) -> str:
        return f"one vote: the cost by its smooth sensitivity (β = {self.beta:g}), its logarithm by β"


EVENTS = (NoisyMax, NoisyThreshold, FilterRest, SanitisedCost)
