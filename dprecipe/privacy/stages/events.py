"""Events of stages: what they release from private records before training, and its cost. Imports are light: methods
import the formulas they need.

`noise_multiplier` is the noise's scale over the most that one added or removed unit moves the release; each event gives
the scale itself. The events hold for units with any number of rows: a unit gives the mean of its rows' vectors, or has
weight 1, spread over its rows; it has a limited number of items, chosen without regard to other units. What the stages
between them do to a record is a function of that record and of what was released before.

A unit that is blanked out gives nothing: no vector, no weight, no item, and it isn't counted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field

from dprecipe.language.base import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Event, check_positive
from dprecipe.privacy.noisy_sums import Gaussian, GaussianEvent
from dprecipe.privacy.questions import BoundedRange, GaussianSum, Question, UniqueItems

if TYPE_CHECKING:
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair
    from dprecipe.privacy.worst_case import Items

_FREE_SQUARE = (11 + 5 * math.sqrt(5)) / 8
"""The largest λ² at which replacing a unit moves the two sums of a column no further than the first alone."""


def moments_squared(square_weight: float, centre: float) -> float:
    """Returns the largest squared L2 norm of (u, λ(u² - c)) for u in [-1, 1]: what adding or removing a unit moves a
    column.

    Guarantees: exact: the squared norm is convex in u², so that it is largest at u² = 0 or u² = 1. At λ = c = 1 it
    is 1, as if the second moment were not released.
    """
    weight = square_weight * square_weight
    return max(weight * centre * centre, 1 + weight * (1 - centre) ** 2)


def moments_replaced_squared(square_weight: float) -> float:
    """Returns the largest squared L2 distance of two such vectors: what replacing a unit moves a column, whatever c is.

    Guarantees: exact. With D = u - v and the sum of both at most 2 - D, the squared distance is at most
    D² (1 + λ² (2 - D)²); it is largest at D = 2, or at the root of its derivative.
    """
    weight = square_weight * square_weight
    if weight <= _FREE_SQUARE:
        return 4.0
    apart = 1.5 - math.sqrt(0.25 - 0.5 / weight)
    return max(4.0, apart * apart * (1 + weight * (2 - apart) ** 2))


MAX_ITEMS = 10**6
"""The most items of a unit."""


class StageEvent(Event):
    """The base class of events that are released once, before training."""

    __slots__ = ()
    noise_multiplier: float

    @property
    def steps(self) -> int:
        """The number of steps, which is 0: a stage comes before the run's steps."""
        return 0

    def with_noise(self, noise_multiplier: float) -> Self:
        """Returns the same release with another noise, which calibration varies. More noise never costs more."""
        return dataclasses.replace(self, noise_multiplier=noise_multiplier)  # type: ignore[type-var]


class GaussianStage(StageEvent, GaussianEvent):
    """The base class of Gaussian noise on a vector that one unit moves by a bounded L2 norm: exactly μ-GDP."""

    __slots__ = ()

    def moved(self, relation: Neighbouring) -> float:
        """Returns the distance that a unit moves the vector, over that of a unit added or removed. For replacing a unit
        it is at least 1: the other unit may be one that gives nothing."""
        raise NotImplementedError(self.kind)

    def squared_mu(self, count: int, relation: Neighbouring) -> float:
        return count * (self.moved(relation) / float(self.noise_multiplier)) ** 2

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return 1.0, self.noise_multiplier / self.moved(relation)

    def cross_check(self) -> Question:
        return GaussianSum(self.noise_multiplier)


@register_event
@dataclass(frozen=True, slots=True)
class NoisyMoments(GaussianStage):
    """Sums of u and of λ(u² - c) for each of `columns` columns that are clipped and scaled to [-1, 1], and of κ.

    λ is `square_weight`, c `centre` and κ `count_weight`; κ > 0 makes the number of units known, up to noise. One
    vector, with noise of one scale, `noise_scale`, on each of its coordinates.

    Formal guarantee: μ-GDP; adding or removing a unit moves the vector by sqrt(d max(λ²c², 1 + λ²(1-c)²) + κ²),
    replacing one by 2 sqrt(d) where λ² <= 2.77. At λ = c = 1 the second moments cost nothing.
    """

    kind: ClassVar[str] = "noisy_moments"
    columns: PositiveInt
    square_weight: PositiveFloat
    centre: Annotated[float, Field(ge=0, le=1)]
    count_weight: NonNegativeFloat
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(columns=self.columns, square_weight=self.square_weight, noise_multiplier=self.noise_multiplier)
        if not 0 <= self.centre <= 1:
            raise ValueError(f"expected 0 <= centre <= 1, got {self.centre}")
        if not 0 <= self.count_weight < math.inf:
            raise ValueError(f"expected a finite count_weight >= 0, got {self.count_weight}")

    @property
    def sensitivity(self) -> float:
        """The largest L2 distance that adding or removing a unit moves the vector."""
        squared = moments_squared(self.square_weight, self.centre)
        return math.sqrt(self.columns * squared + self.count_weight**2)

    @property
    def replaced_sensitivity(self) -> float:
        """The largest L2 distance that replacing a unit moves the vector, by another unit or by one that gives
        nothing."""
        squared = moments_replaced_squared(self.square_weight)
        return max(math.sqrt(self.columns * squared), self.sensitivity)

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on each coordinate."""
        return self.noise_multiplier * self.sensitivity

    def moved(self, relation: Neighbouring) -> float:
        return self.replaced_sensitivity / self.sensitivity if relation is Neighbouring.REPLACE_ONE else 1.0

    def describe_sensitivity(self) -> str:
        return f"sums of {self.columns:,} columns and of their squares by {self.sensitivity:.6g} in L2 norm"


@register_event
@dataclass(frozen=True, slots=True)
class NoisyCovariance(GaussianStage):
    """The sum of x xᵀ over rows x of `dimension` coordinates that are clipped to norm 1, a symmetric matrix.

    Noise has the standard deviation `noise_multiplier` on the diagonal and 1/√2 of it off the diagonal, symmetric: that
    is the same noise on every coordinate of the matrix in the Frobenius norm.

    Formal guarantee: μ-GDP; adding or removing a unit moves the matrix by at most 1 in Frobenius norm, replacing one by
    √2. Source: Dwork et al. 2014, "Analyze Gauss", with noise of half the variance off the diagonal.
    """

    kind: ClassVar[str] = "noisy_covariance"
    dimension: PositiveInt
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(dimension=self.dimension, noise_multiplier=self.noise_multiplier)

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on each entry of the diagonal."""
        return float(self.noise_multiplier)

    def moved(self, relation: Neighbouring) -> float:
        return math.sqrt(2) if relation is Neighbouring.REPLACE_ONE else 1.0

    def describe_sensitivity(self) -> str:
        return f"the sum of x xᵀ, {self.dimension:,} by {self.dimension:,}, by 1 in Frobenius norm"


@register_event
@dataclass(frozen=True, slots=True)
class NoisyCount(GaussianStage):
    """The number of units, or of held-out records that a model gets right, with Gaussian noise of standard deviation
    `noise_multiplier`.

    Formal guarantee: 1/`noise_multiplier`-GDP. Replacing a unit costs no more; it costs as much if the other unit is
    one that gives nothing.
    """

    kind: ClassVar[str] = "noisy_count"
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise."""
        return float(self.noise_multiplier)

    def moved(self, relation: Neighbouring) -> float:
        return 1.0

    def describe_sensitivity(self) -> str:
        return "the number of units by 1"


@register_event
@dataclass(frozen=True, slots=True)
class NoisyQuantile(StageEvent):
    """A number of a public interval at about the share `level` of the units' weight, by the exponential mechanism.

    Its density is proportional to exp(-β |w(x) - level W|), with w(x) the weight below x and W that of all units that
    give any: W moves with them, even if their number is public. `rank_weight` is β; `noise_multiplier` is 1/β over the
    range of the exponent when a unit is added or removed, 2 max(level, 1 - level).

    Formal guarantee: of bounded range 1/`noise_multiplier`; if a unit is replaced, 1/(`noise_multiplier`
    max(level, 1 - level)). Source: Smith 2011; Dong, Durfee & Rogers 2020; `bounded_range`.
    """

    kind: ClassVar[str] = "noisy_quantile"
    exact_losses: ClassVar[bool] = False
    cross_check_tolerance: ClassVar[tuple[float, float]] = (2e-3, 1e-3)
    level: Fraction
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)
        if not 0 < self.level < 1:
            raise ValueError(f"expected 0 < level < 1, got {self.level}")

    @property
    def rank_weight(self) -> float:
        """The weight β of a rank in the exponent."""
        return 1 / (2 * max(self.level, 1 - self.level) * self.noise_multiplier)

    def loss_range(self, relation: Neighbouring) -> float:
        """Returns the largest distance between the privacy losses of two outcomes."""
        moved = 1.0 if relation is Neighbouring.REPLACE_ONE else max(self.level, 1 - self.level)
        return 2 * moved * self.rank_weight

    @property
    def max_loss(self) -> float:
        """The largest loss of replacing a unit, which is no less than that of adding or removing one."""
        return self.loss_range(Neighbouring.REPLACE_ONE)

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.privacy.stages.bounded_range import bounded_range_curve

        return bounded_range_curve(self.loss_range(relation), orders)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        from dprecipe.privacy.loss import LossPair
        from dprecipe.privacy.stages.bounded_range import bounded_range_losses

        return LossPair(bounded_range_losses(self.loss_range(relation), step))

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return 1.0, 2 / self.loss_range(relation)

    def stand_in(self) -> Event:
        return Gaussian(2 * self.noise_multiplier)

    def cross_check(self) -> Question:
        added, replaced = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
        return BoundedRange(self.loss_range(added), self.loss_range(replaced))

    def describe_sensitivity(self) -> str:
        return f"the rank of a number, less {self.level:g} of the weight, by {max(self.level, 1 - self.level):g}"


@register_event
@dataclass(frozen=True, slots=True)
class PartitionSelection(StageEvent):
    """The items whose noisy count reaches `threshold`, of those that any unit has, with their noisy counts.

    Each unit has at most `max_items` different items, and counts once for each. Counts have Gaussian noise of standard
    deviation `noise_scale`: `noise_multiplier` times sqrt(`max_items`). Items that no unit has get no noise, and
    neither the order nor the names of the released items may reveal more. A unit's items depend on its own raw records
    alone, not on what was released before.

    Formal guarantee: with p = Φ((`threshold` - 1)/`noise_scale`), a unit's item that no other unit has is released with
    probability at most 1 - p; an item that others have moves a count by 1. The number of each depends on the
    neighbouring data sets; the accountants take the largest cost of all, over the whole composition (`worst_case`).
    Source: Korolova et al. 2009; Desfontaines, Voss, Gipson & Mandayam 2022.
    """

    kind: ClassVar[str] = "partition_selection"
    has_losses: ClassVar[bool] = False
    max_items: Annotated[int, Field(gt=0, le=MAX_ITEMS)]
    threshold: Annotated[float, Field(ge=1)]
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(max_items=self.max_items, threshold=self.threshold, noise_multiplier=self.noise_multiplier)
        if not self.threshold >= 1:  # an item of one unit would be released more often than not
            raise ValueError(f"expected threshold >= 1, got {self.threshold}")
        if self.max_items > MAX_ITEMS:
            raise ValueError(f"expected max_items <= {MAX_ITEMS}, got {self.max_items}")

    @classmethod
    def with_leak(cls, max_items: int, leak: float, noise_multiplier: float) -> PartitionSelection:
        """Returns the event whose threshold releases any of `max_items` items that no other unit has with probability
        at most `leak`, 0 < `leak` < 1: τ = 1 + σ Φ⁻¹((1 - leak)^(1/k)).

        Raises:
            ValueError: no such probability, or no event.
        """
        from scipy import special

        if not 0 < leak < 1:
            raise ValueError(f"expected 0 < leak < 1, got {leak}")
        check_positive(max_items=max_items, noise_multiplier=noise_multiplier)
        one = -math.expm1(math.log1p(-leak) / max_items)
        deviations = float(-special.ndtri(one)) * (1 + 1e-12)
        threshold = 1 + noise_multiplier * math.sqrt(max_items) * deviations
        return cls(max_items, threshold, noise_multiplier)

    def with_noise(self, noise_multiplier: float) -> Self:
        """Returns the same release with another noise, and with the threshold that keeps the leak."""
        threshold = 1 + (self.threshold - 1) * (noise_multiplier / self.noise_multiplier)
        return dataclasses.replace(self, threshold=threshold, noise_multiplier=noise_multiplier)

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on each count."""
        return self.noise_multiplier * math.sqrt(self.max_items)

    @property
    def leak(self) -> float:
        """The probability that any of a unit's items is released, if no other unit has any of them."""
        return -math.expm1(-self.max_items * self.items().leak)

    def items(self) -> Items:
        from scipy import special

        from dprecipe.privacy.worst_case import Items

        leak = float(-special.log_ndtr((self.threshold - 1) / self.noise_scale)) * (1 + 1e-12)
        return Items(self.max_items, self.noise_scale**-2, leak)

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        """Returns infinity: a release that may reveal an item outright has no finite curve."""
        import numpy as np

        return np.full(len(orders), np.inf)

    def stand_in(self) -> Event:
        return Gaussian(self.noise_multiplier)

    def cross_check(self) -> Question:
        return UniqueItems(self.max_items, self.noise_scale, self.threshold)

    def describe_sensitivity(self) -> str:
        counts = "one count by 1" if self.max_items == 1 else f"{self.max_items:,} counts by 1 each"
        return f"{counts}; an item is released if its noisy count is {self.threshold:g} or more"


EVENTS = (NoisyMoments, NoisyCovariance, NoisyCount, NoisyQuantile, PartitionSelection)
