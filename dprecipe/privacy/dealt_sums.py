"""Events of epochs in which every unit is dealt to one step, or shuffled into one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from dprecipe.language.base import PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealing.epoch import EpochRatio
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Event, check_positive
from dprecipe.privacy.noisy_sums import Gaussian, GaussianEvent
from dprecipe.privacy.questions import LibraryLoss, Question
from dprecipe.privacy.sampling import DealtBatches, Sampling

if TYPE_CHECKING:
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair


@register_event
@dataclass(frozen=True, slots=True)
class DealtGaussian(GaussianEvent):
    """An epoch of `batches` steps to which units are dealt: each takes part in exactly one, chosen uniformly,
    independently of the data and of all other units, and kept secret.

    The epoch is one event: a run that ends within it has released less, and is charged for all of it. That holds
    whatever decided where it ended. Steps of an epoch are never charged one by one.

    Formal guarantee: for adding or removing a unit, dominated in both directions by (1/t) Σ N(eᵢ, σ² I) against
    N(0, σ² I) on t = `batches` coordinates, training adaptively included; tight. A unit that is zeroed out is dealt
    like any other, so its pair is the same. Replacing a unit is removing one and adding another. By itself an epoch
    costs at most what one `Gaussian` costs. Source: Kahane 1986 (docs/explanation/accounting.md).
    """

    kind: ClassVar[str] = "dealt_gaussian"
    exact_curve: ClassVar[bool] = False
    noise_multiplier: PositiveFloat
    batches: PositiveInt

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier, batches=self.batches)

    @property
    def _ratio(self) -> EpochRatio:
        return EpochRatio(1 / float(self.noise_multiplier), 1 / self.batches, self.batches)

    @property
    def steps(self) -> int:
        return self.batches

    def unamplified(self) -> Event:
        return Gaussian(self.noise_multiplier)

    def needs_group_privacy(self, relation: Neighbouring) -> bool:
        return relation is Neighbouring.REPLACE_ONE

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.privacy import curves

        return curves.gaussian(1 / float(self.noise_multiplier), orders)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        from dprecipe.privacy.dealing.law import epoch_losses

        return epoch_losses(self._ratio, step, tail)

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return None if relation is Neighbouring.REPLACE_ONE else (1.0, self.noise_multiplier)

    def stand_in(self) -> Event:
        return Gaussian(1 / math.sqrt(math.log1p(self._ratio.variance)))

    def sampling(self) -> Sampling:
        return DealtBatches(self.batches)

    def cross_check(self) -> Question:
        from dprecipe.privacy.dealing.recheck import distribution_of_epoch

        return LibraryLoss(partial(distribution_of_epoch, self._ratio))
