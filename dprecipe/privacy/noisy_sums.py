"""Noisy sums that any mechanism may release: each unit's contribution has bounded norm, and noise is added.

`noise_multiplier` is the scale of the noise over the clip norm, which is the most by which adding or removing one unit
moves the sum. Replacing a unit moves it twice as far, which each event accounts for. Events of one mechanism are in its
folder.

Edge cases are those of `events.Event`: a multiplier of 0 is refused, a batch may be empty, and a sampling rate of 1 is
no sampling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from dprecipe.language.base import PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.box.box import BoxEvent, BoxSum
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Event, NormKind, Rate, check_positive, check_rate
from dprecipe.privacy.questions import CappedSum, FixedSizeSum, GaussianSum, Question
from dprecipe.privacy.sampling import EveryUnit, FixedSizeBatch, PoissonBatch, Sampling

if TYPE_CHECKING:
    from dprecipe.noise.distributions import Distribution
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import Loss, LossPair


@lru_cache(maxsize=64)
def full_batch_probability(size: int, rate: float, cap: int) -> float:
    """Returns an upper bound of Pr[at least `cap` of `size` units join, each with probability `rate`]; 1 where `cap` is
    no more than their mean.

    The first term by Stirling's formula, which bounds a binomial coefficient from above, the others by their ratios.

    Guarantees: if below 1, too large by at most 1/(11 m), relatively, m the lesser of `cap` and `size` - `cap`.
    Source: MacWilliams & Sloane 1977, Chapter 10, Lemma 7.
    """
    if cap <= size * rate:
        return 1.0
    if cap >= size:
        return rate**size if cap == size else 0.0
    part = cap / size
    divergence = cap * math.log(part / rate) + (size - cap) * math.log1p(-(part - rate) / (1 - rate))
    first = math.exp(-divergence) * math.sqrt(size / (2 * math.pi * cap * (size - cap)))
    total = term = 1.0
    for k in range(cap, size):
        term *= (size - k) / (k + 1) * rate / (1 - rate)
        total += term
        if term < 1e-17 * total:
            break
    return min(1.0, first * total * (1 + 1e-9))


class GaussianEvent(Event):
    """The base class of events with Gaussian noise on a sum with bounded L2 norm."""

    __slots__ = ()
    noise_multiplier: float

    def noise_distribution(self) -> Distribution:
        from dprecipe.noise.distributions import Distribution

        return Distribution("gaussian")


@register_event
@dataclass(frozen=True, slots=True)
class Gaussian(GaussianEvent):
    """A sum in which every unit takes part, with Gaussian noise.

    Formal guarantee: exactly μ-GDP, with μ = 1/`noise_multiplier` for adding or removing a unit and
    2/`noise_multiplier` for replacing one. Source: Dong, Roth & Su 2022, Theorem 2.
    """

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)

    def squared_mu(self, count: int, relation: Neighbouring) -> float:
        return _squared_mu(count, self.noise_multiplier, relation)

    def together(self, size: int, relation: Neighbouring) -> Event:
        return Gaussian(self.noise_multiplier / size)

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return _screening_bound(1.0, self.noise_multiplier, relation)

    def sampling(self) -> Sampling:
        return EveryUnit()

    def cross_check(self) -> Question:
        return GaussianSum(self.noise_multiplier)


@register_event
@dataclass(frozen=True, slots=True)
class PoissonGaussian(GaussianEvent):
    """A `Gaussian` in which each unit takes part independently with probability `sampling_rate`. With rate 1 the two
    are the same.

    Formal guarantee: dominated by (1-q) N(0, σ²) + q N(1, σ²) against N(0, σ²), in both directions, for adding or
    removing a unit; against (1-q) N(0, σ²) + q N(-1, σ²) for replacing one. Source: Mironov, Talwar & Zhang 2019,
    Theorem 4; Balle, Barthe & Gaboardi 2018, Theorem 2.
    """

    kind: ClassVar[str] = "poisson_gaussian"
    integrates: ClassVar[bool] = True
    sampling_rate: Rate
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)
        check_rate(self.sampling_rate)

    @property
    def participation(self) -> float:
        return float(self.sampling_rate)

    def squared_mu(self, count: int, relation: Neighbouring) -> float | None:
        return _squared_mu(count, self.noise_multiplier, relation) if self.sampling_rate == 1 else None

    def together(self, size: int, relation: Neighbouring) -> Event | None:
        from dprecipe.privacy.mixtures import MixedGaussian, binomial_weights

        if self.sampling_rate == 1:
            return Gaussian(self.noise_multiplier).together(size, relation)
        if relation is Neighbouring.REPLACE_ONE:
            return None
        return MixedGaussian(binomial_weights(size, self.sampling_rate), 1.0, self.noise_multiplier)

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        return _sampled_curve(self.participation, float(self.noise_multiplier), orders, relation)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        loss = _sampled_loss(self.participation, float(self.noise_multiplier), relation, step, tail)
        return _in_both_directions(loss, relation)

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return _screening_bound(self.sampling_rate, self.noise_multiplier, relation)

    def sampling(self) -> Sampling:
        return PoissonBatch(self.sampling_rate)

    def cross_check(self) -> Question:
        return GaussianSum(self.noise_multiplier, self.sampling_rate)


@register_event
@dataclass(frozen=True, slots=True)
class TruncatedPoissonGaussian(GaussianEvent):
    """A `PoissonGaussian` over `size` units, with at most `max_batch_size` units in a batch: if more join, a uniformly
    random subset of that size takes part.

    If a batch is full, one unit more or less changes who else takes part: the sum moves by up to two clip norms.

    Formal guarantee: fix whether the other units that join fill the batch, and which of them then stay. If they don't,
    the unit joins as it would without a cap. If they do, it joins with at most the same probability, and replaces one
    of them. So the release is dominated by the mixture of `PoissonGaussian` and of the same at half the noise, the
    latter with the probability that the batch is full (docs/explanation/accounting.md). The larger of two neighbouring
    data sets has `size` other units.
    """

    kind: ClassVar[str] = "truncated_poisson_gaussian"
    integrates: ClassVar[bool] = True
    sampling_rate: Rate
    noise_multiplier: PositiveFloat
    size: PositiveInt
    max_batch_size: PositiveInt

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)
        if not self.sampling_rate < 1:
            raise ValueError(f"expected sampling_rate < 1, got {self.sampling_rate}")
        if not 0 < self.max_batch_size <= self.size:
            raise ValueError(f"expected 0 < max_batch_size <= size, got {self.max_batch_size} and {self.size}")

    def accounted_under(self, relation: Neighbouring) -> Neighbouring:
        blanked = relation is Neighbouring.ZERO_OUT_ONE
        if blanked:
            return Neighbouring.REPLACE_ONE if self.full_chance > 0 else Neighbouring.ADD_OR_REMOVE_ONE
        return relation

    @property
    def participation(self) -> float:
        return float(self.sampling_rate)

    @property
    def full_chance(self) -> float:
        return full_batch_probability(self.size, self.sampling_rate, self.max_batch_size)

    def uncapped(self) -> Event:
        return PoissonGaussian(self.sampling_rate, self.noise_multiplier)

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.privacy import curves

        q, sigma, full = self.participation, float(self.noise_multiplier), self.full_chance
        usual = _sampled_curve(q, sigma, orders, relation)
        return curves.mix_curves(usual, _sampled_curve(q, sigma / 2, orders, relation), full, orders) if full else usual

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        from dprecipe.privacy.loss import mix_losses

        q, sigma, full = self.participation, float(self.noise_multiplier), self.full_chance
        usual = _sampled_loss(q, sigma, relation, step, tail)
        loss = usual if full == 0 else mix_losses(usual, _sampled_loss(q, sigma / 2, relation, step, tail), full)
        return _in_both_directions(loss, relation)

    def sampling(self) -> Sampling:
        return PoissonBatch(self.sampling_rate, self.max_batch_size)

    def cross_check(self) -> Question:
        if self.full_chance == 0:
            return GaussianSum(self.noise_multiplier, self.sampling_rate)
        return CappedSum(self.noise_multiplier, self.sampling_rate, self.size, self.max_batch_size)

    def describe_sensitivity(self) -> str:
        return f"the sum by 1 in L2 norm, by 2 where a batch has its maximum of {self.max_batch_size:,} units"


@register_event
@dataclass(frozen=True, slots=True)
class FixedSizeGaussian(GaussianEvent):
    """A `Gaussian` in which `batch` of the `size` units take part: a uniformly random subset, drawn without
    replacement. `noise_multiplier` is over one clip norm.

    Formal guarantee: a unit that is added, removed or replaced moves the sum by up to two clip norms: by its own
    gradient and that of the unit whose place it takes. For adding or removing one, dominated by (1-q) N(0, σ²) +
    q N(2, σ²) against N(0, σ²) and the reverse, q = `batch`/`size`, where the larger data set has `size` units: the
    pairs of `PoissonGaussian` at half the noise multiplier; tight. For replacing one, dominated in both directions by
    the first of them. Source: docs/explanation/accounting.md; Balle, Barthe & Gaboardi 2018, Theorem 5; Wang, Balle &
    Kasiviswanathan 2019, Theorem 27.
    """

    kind: ClassVar[str] = "fixed_size_gaussian"
    integrates: ClassVar[bool] = True
    exact_curve: ClassVar[bool] = False
    size: PositiveInt
    batch: PositiveInt
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)
        if not 0 < self.batch < self.size:
            raise ValueError(f"expected 0 < batch < size, got {self.batch} and {self.size}")

    def accounted_under(self, relation: Neighbouring) -> Neighbouring:
        return Neighbouring.REPLACE_ONE if relation is Neighbouring.ZERO_OUT_ONE else relation

    @property
    def participation(self) -> float:
        return self.batch / self.size

    def together(self, size: int, relation: Neighbouring) -> Event | None:
        from dprecipe.privacy.mixtures import MixedGaussian, hypergeometric_weights

        if relation is not Neighbouring.ADD_OR_REMOVE_ONE or self.batch > self.size - size:
            return None
        return MixedGaussian(hypergeometric_weights(size, self.size, self.batch), 2.0, self.noise_multiplier)

    def among_fewer(self, fewer: int, relation: Neighbouring) -> Event | None:
        if relation is not Neighbouring.ADD_OR_REMOVE_ONE:
            return self
        return replace(self, size=self.size - fewer) if self.batch < self.size - fewer else None

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.privacy import curves

        if relation is Neighbouring.ADD_OR_REMOVE_ONE:
            return curves.poisson_gaussian(self.participation, float(self.noise_multiplier) / 2, orders)
        return curves.fixed_size_gaussian(self.participation, float(self.noise_multiplier), orders)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        from dprecipe.privacy import pairs
        from dprecipe.privacy.loss import MAX_BINS, LossPair

        sigma = float(self.noise_multiplier)
        if relation is Neighbouring.ADD_OR_REMOVE_ONE:
            return _in_both_directions(_sampled_loss(self.participation, sigma / 2, relation, step, tail), relation)
        return LossPair(pairs.fixed_size_gaussian(self.participation, sigma, step, tail, MAX_BINS))

    def sampling(self) -> Sampling:
        return FixedSizeBatch(self.batch)

    def cross_check(self) -> Question:
        return FixedSizeSum(self.noise_multiplier, self.size, self.batch)

    def describe_sensitivity(self) -> str:
        return f"the sum by 2 in L2 norm; batches of {self.batch:,} of {self.size:,} units"


@register_event
@dataclass(frozen=True, slots=True)
class PoissonLaplace(BoxEvent):
    """A `PoissonGaussian` with Laplace noise, for sums of vectors with bounded L1 norm.

    `noise_multiplier` is the scale of the noise on each coordinate over that norm.

    Formal guarantee: that of `BoxEvent`, for a box of one coordinate with all of the norm, the worst case
    (docs/explanation/accounting.md).
    """

    kind: ClassVar[str] = "poisson_laplace"
    sampling_rate: Rate
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)
        check_rate(self.sampling_rate)

    @property
    def box(self) -> BoxSum:
        """The box of one coordinate with all of the norm."""
        return BoxSum(self.sampling_rate, self.noise_multiplier, "laplace", None, ((1.0, 1),))

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return _screening_bound(self.sampling_rate, self.noise_multiplier, relation)

    def stand_in(self) -> Event:
        return PoissonGaussian(self.sampling_rate, self.noise_multiplier)

    @property
    def norm(self) -> NormKind:
        return "l1"

    def describe_sensitivity(self) -> str:
        return "the sum by 1 in L1 norm; laplace noise"


def _squared_mu(count: int, sigma: float, relation: Neighbouring) -> float:
    moved = 4 if relation is Neighbouring.REPLACE_ONE else 1
    return moved * (count / float(sigma) ** 2)


def _screening_bound(q: float, sigma: float, relation: Neighbouring) -> tuple[float, float] | None:
    return None if relation is Neighbouring.REPLACE_ONE else (q, sigma)


def _sampled_curve(q: float, sigma: float, orders: Sequence[float], relation: Neighbouring) -> Array:
    from dprecipe.privacy import curves

    if relation is Neighbouring.REPLACE_ONE:
        return curves.poisson_gaussian_replaced(q, sigma, orders)
    return curves.poisson_gaussian(q, sigma, orders)


def _sampled_loss(q: float, sigma: float, relation: Neighbouring, step: float, tail: float) -> Loss:
    from dprecipe.privacy import pairs
    from dprecipe.privacy.loss import MAX_BINS

    if relation is Neighbouring.REPLACE_ONE:
        return pairs.poisson_gaussian_replaced(q, sigma, step, tail, MAX_BINS)
    return pairs.poisson_gaussian(q, sigma, step, tail, MAX_BINS)


def _in_both_directions(loss: Loss, relation: Neighbouring) -> LossPair:
    """Returns both directions of a loss. The pair of replacing a unit is its own mirror image."""
    from dprecipe.privacy.loss import LossPair, swap_loss

    return LossPair(loss, None if relation is Neighbouring.REPLACE_ONE else swap_loss(loss))
