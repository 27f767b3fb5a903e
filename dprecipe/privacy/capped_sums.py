"""Events of dealt epochs whose batches have a maximum size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from dprecipe.language.base import PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealing.epoch import EpochRatio, MixedRatio
from dprecipe.privacy.dealt_sums import DealtGaussian, EpochEvent
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Event
from dprecipe.privacy.noisy_sums import Gaussian, full_batch_probability
from dprecipe.privacy.questions import LibraryLoss, Question
from dprecipe.privacy.sampling import DealtBatches, Sampling

if TYPE_CHECKING:
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair

_REST = 1e4
"""The probability of more full batches than are looked at, over the mass that a loss distribution may lose."""
_GROUP = 4
"""The number of units by which the data set of a group is taken to be larger, or a multiple."""
_CLOSE = 4
"""The number of full batches up to which every number is looked at; beyond it, about this many up to twice a number."""


@register_event
@dataclass(frozen=True, slots=True)
class CappedDealtGaussian(EpochEvent):
    """A `DealtGaussian` over `size` units, with at most `batch_limit` units in a batch: each unit has a secret random
    priority in each epoch, and of those that are dealt to a batch, the `batch_limit` with the highest take part.

    Formal guarantee: fix what the other units draw, and call a batch full if `batch_limit` of them are dealt to it. A
    unit that is dealt to a full batch displaces one other or none, and moves the sum by up to two clip norms; in any
    other batch by up to one. So for adding or removing a unit, given the f full batches, an epoch is dominated in both
    directions by (1/t) Σ N(cᵢ eᵢ, σ² I) against N(0, σ² I), cᵢ = 2 in f of the t coordinates and 1 in the others.
    Numbers of units in batches are negatively associated, so Pr[f >= m] <= C(t, m) pᵐ, p the chance that a batch is
    full. The larger of two neighbouring data sets has `size` other units. `taken` is that of a `DealtGaussian`.
    Replacing a unit, or zeroing it out, is removing one and adding another, or costs what it costs without a limit,
    and the chance of a full batch. Source: Joag-Dev & Proschan 1983 (docs/explanation/accounting.md#dealt-epochs).
    """

    kind: ClassVar[str] = "capped_dealt_gaussian"
    noise_multiplier: PositiveFloat
    batches: PositiveInt
    size: PositiveInt
    batch_limit: PositiveInt
    taken: PositiveInt | None = None

    def __post_init__(self) -> None:
        self.uncapped()  # checks its fields
        if not 0 < self.batch_limit <= self.size:
            raise ValueError(f"expected 0 < batch_limit <= size, got {self.batch_limit} and {self.size}")

    @property
    def steps(self) -> int:
        return self.uncapped().steps

    @property
    def participation(self) -> float:
        return self.uncapped().participation

    @property
    def ratio(self) -> EpochRatio:
        """The likelihood ratio of an epoch in which no batch is full."""
        return self.uncapped().ratio

    def take(self, steps: int) -> Event:
        return replace(self, taken=steps)

    @property
    def full_batch_chance(self) -> float:
        """Upper bound on the probability that a certain batch is full."""
        return full_batch_probability(self.size, 1 / self.batches, self.batch_limit)

    @property
    def full_chance(self) -> float:
        return min(1.0, self.steps * self.full_batch_chance)

    def mixed_ratio(self, rest: float) -> MixedRatio:
        """Returns the likelihood ratios for numbers of full batches, but for a probability of `rest` at most. Numbers
        between two that are looked at count as the larger: a ratio with more full batches is larger in convex order."""
        cases: list[tuple[float, EpochRatio]] = []
        left, least = 1.0, 0
        while left > rest:
            most = min(least + least // _CLOSE, self.steps)
            beyond = min(left, self._chance_of(most + 1))
            if beyond < left:
                cases.append((left - beyond, replace(self.ratio, doubled=most)))
            left, least = beyond, most + 1
        return MixedRatio(tuple(cases), left)

    def _chance_of(self, least: int) -> float:
        """Returns an upper bound of the chance that at least `least` batches are full."""
        chance = self.full_batch_chance
        if least > self.steps or chance == 0:
            return 0.0
        log = math.log(math.comb(self.steps, least)) + least * math.log(chance)
        return min(1.0, math.exp(min(log, 0.0)) * (1 + 1e-9))

    def accounted_under(self, relation: Neighbouring) -> Neighbouring:
        if relation is Neighbouring.ZERO_OUT_ONE:
            return Neighbouring.REPLACE_ONE if self.full_chance > 0 else Neighbouring.ADD_OR_REMOVE_ONE
        return relation

    def uncapped(self) -> DealtGaussian:
        return DealtGaussian(self.noise_multiplier, self.batches, self.taken)

    def unamplified(self, relation: Neighbouring) -> Event:
        if relation is Neighbouring.ADD_OR_REMOVE_ONE:
            return self  # of its own Rényi curve, which is that of known batches
        return Gaussian(self.noise_multiplier)  # a unit that keeps its place displaces no other

    def of_null_unit(self) -> Event:
        return self.uncapped()  # it moves a full batch by the unit that it displaces, and no other

    def among_fewer(self, fewer: int, relation: Neighbouring) -> Event | None:
        more = _GROUP * math.ceil(fewer / _GROUP)  # a group that joins fills batches; small groups share one curve
        return replace(self, size=self.size + more)

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.privacy import curves

        usual, full = (curves.gaussian(moved / float(self.noise_multiplier), orders) for moved in (1, 2))
        chance = self.full_batch_chance
        return curves.mix_curves(usual, full, chance, orders) if chance else usual

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        from dprecipe.privacy.dealing.law import epoch_losses

        return epoch_losses(self.mixed_ratio(_REST * tail), step, tail)

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return None if relation is Neighbouring.REPLACE_ONE else (1.0, float(self.noise_multiplier) / 2)

    def sampling(self) -> Sampling:
        return DealtBatches(self.batches, self.taken, self.batch_limit)

    def cross_check(self) -> Question:
        from dprecipe.privacy.dealing.recheck import distribution_of_capped_epoch
        from dprecipe.privacy.library_caps import list_full_chances

        capped = (self.batches, self.steps, self.size, self.batch_limit)
        distribution = partial(distribution_of_capped_epoch, float(self.noise_multiplier), *capped)
        return LibraryLoss(distribution, float(list_full_chances(*capped)[1]))

    def describe_sensitivity(self) -> str:
        return f"the sum by 1 in L2 norm, by 2 where a batch has its maximum of {self.batch_limit:,} units"
