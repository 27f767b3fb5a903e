"""Events of epochs in which every unit is dealt to one step, or shuffled into one: the epoch is one event."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from dprecipe.language.base import PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealing.epoch import EpochRatio
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Event, check_positive
from dprecipe.privacy.noisy_sums import Gaussian, GaussianEvent
from dprecipe.privacy.questions import LibraryLoss, Question
from dprecipe.privacy.sampling import DealtBatches, PermutedBatches, Sampling

if TYPE_CHECKING:
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair


class EpochEvent(GaussianEvent):
    """The base class of events that are an epoch: a unit takes part in at most one of its steps, and which is secret.

    A run that stops within an epoch has released less, and is charged for all of it, whatever decided where it stopped.
    A recipe whose length ends within an epoch charges for fewer steps (`take`): that is fixed beforehand, and public.
    Steps of an epoch are never charged one by one.
    """

    __slots__ = ()
    exact_curve: ClassVar[bool] = False
    batches: int

    @property
    def ratio(self) -> EpochRatio:
        """The likelihood ratio of an epoch with a unit to one without it."""
        raise NotImplementedError(self.kind)

    @property
    def steps(self) -> int:
        return self.batches

    def take(self, steps: int) -> Event:
        """Returns the event of an epoch that ends after its first `steps` steps, fewer than it has."""
        raise NotImplementedError(self.kind)

    def needs_group_privacy(self, relation: Neighbouring) -> bool:
        return relation is Neighbouring.REPLACE_ONE

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.privacy import curves

        return curves.gaussian(self.ratio.mu, orders)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        from dprecipe.privacy.dealing.law import epoch_losses

        return epoch_losses(self.ratio, step, tail)

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return None if relation is Neighbouring.REPLACE_ONE else (1.0, 1 / self.ratio.mu)

    def stand_in(self) -> Event:
        return Gaussian(1 / math.sqrt(min(math.log1p(self.ratio.variance), self.ratio.mu**2)))

    def cross_check(self) -> Question:
        from dprecipe.privacy.dealing.recheck import distribution_of_epoch

        return LibraryLoss(partial(distribution_of_epoch, self.ratio))


@register_event
@dataclass(frozen=True, slots=True)
class DealtGaussian(EpochEvent):
    """An epoch of `batches` steps to which units are dealt: each takes part in exactly one, chosen uniformly,
    independently of the data and of all other units, and kept secret.

    Formal guarantee: for adding or removing a unit, dominated in both directions by (1/t) Σ N(eᵢ, σ² I) against
    N(0, σ² I) on t = `batches` coordinates, training adaptively included; tight. A unit that is zeroed out is dealt
    like any other, so its pair is the same. Replacing a unit is removing one and adding another. By itself an epoch
    costs at most what one `Gaussian` costs. If a run ends after `taken` steps of the epoch, a number that is fixed
    beforehand and public, a unit takes part in none of them with probability 1 - taken/t: (1/t) Σ N(eᵢ, σ² I) over
    these steps, and N(0, σ² I) otherwise. Source: Kahane 1986 (docs/explanation/accounting.md).
    """

    kind: ClassVar[str] = "dealt_gaussian"
    noise_multiplier: PositiveFloat
    batches: PositiveInt
    taken: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier, batches=self.batches, taken=self.steps)
        if self.steps > self.batches or self.taken == self.batches:
            raise ValueError(f"expected taken < batches, got {self.taken} and {self.batches}")

    @property
    def steps(self) -> int:
        return self.batches if self.taken is None else self.taken

    @property
    def ratio(self) -> EpochRatio:
        return EpochRatio(1 / float(self.noise_multiplier), 1 / self.batches, self.steps)

    @property
    def participation(self) -> float:
        return self.steps / self.batches

    def take(self, steps: int) -> Event:
        return replace(self, taken=steps)

    def unamplified(self, relation: Neighbouring) -> Event:
        return Gaussian(self.noise_multiplier)

    def sampling(self) -> Sampling:
        return DealtBatches(self.batches, self.taken)


@register_event
@dataclass(frozen=True, slots=True)
class PermutedGaussian(EpochEvent):
    """An epoch of `batches` steps over batches of exactly `batch` units each: `size` units in a uniformly random order,
    new and kept secret, cut into batches; what remains of the order takes no part.

    Formal guarantee: for adding or removing a unit, where the larger data set has `size` units and the smaller one
    fills all batches: the order of the larger is that of the smaller with the unit at a uniform place, and the one
    that stood there at the end. So one batch gets the unit's gradient instead of another's, by up to two clip norms,
    or none does: dominated in both directions by (1 - tB/N) N(0, σ² I) + (B/N) Σ N(2 eᵢ, σ² I) against N(0, σ² I) on t
    coordinates; tight. Replacing is removing one and adding another, or a Gaussian each epoch on a batch that everyone
    knows, whichever costs less; so is zeroing out, and one of both contributes nothing.
    Source: docs/explanation/accounting.md#permuted-epochs.
    """

    kind: ClassVar[str] = "permuted_gaussian"
    size: PositiveInt
    batch: PositiveInt
    batches: PositiveInt
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier, batch=self.batch, batches=self.batches)
        if not self.batch * self.batches < self.size:
            raise ValueError(f"expected batch * batches < size, got {self.batch}, {self.batches} and {self.size}")

    @property
    def ratio(self) -> EpochRatio:
        return EpochRatio(2 / float(self.noise_multiplier), self.batch / self.size, self.batches)

    @property
    def participation(self) -> float:
        return self.batch * self.batches / self.size

    def take(self, steps: int) -> Event:
        return replace(self, batches=steps)

    def accounted_under(self, relation: Neighbouring) -> Neighbouring:
        return Neighbouring.REPLACE_ONE if relation is Neighbouring.ZERO_OUT_ONE else relation

    def of_null_unit(self) -> Event:
        return replace(self, noise_multiplier=2 * self.noise_multiplier)  # one batch loses another unit's gradient

    def among_fewer(self, fewer: int, relation: Neighbouring) -> Event | None:
        if relation is not Neighbouring.ADD_OR_REMOVE_ONE:
            return self
        fits = self.batch * self.batches < self.size - fewer
        return replace(self, size=self.size - fewer) if fits else None

    def unamplified(self, relation: Neighbouring) -> Event:
        moved = 2 if relation is Neighbouring.ADD_OR_REMOVE_ONE else 1
        return Gaussian(self.noise_multiplier / moved)

    def sampling(self) -> Sampling:
        return PermutedBatches(self.batch, self.batches)

    def describe_sensitivity(self) -> str:
        return f"the sum by 2 in L2 norm; batches of {self.batch:,} of {self.size:,} units in a random order"
