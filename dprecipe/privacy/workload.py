"""Charges as the accountants see them: one unsampled Gaussian, sampled Gaussians, encoded sums, sanitised costs and
hidden runs with their counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from dprecipe.privacy import full_lots
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import (
    VOTES,
    Charge,
    Encoded,
    Event,
    FilterRest,
    FixedSizeGaussian,
    Gaussian,
    NoisyMax,
    NoisyThreshold,
    PartitionedGaussian,
    PoissonGaussian,
    PoissonLaplace,
    ProjectedDescent,
    SanitisedCost,
    TruncatedPoissonGaussian,
)

_NO_CODEBOOK = "sha256:" + "0" * 64


@dataclass(frozen=True, slots=True)
class Sampled:
    """`count` steps of the Gaussian at multiplier `sigma`, sampled at rate `q` < 1: Poisson; or, `fixed`, in lots of
    one size without replacement.

    `full` bounds the probability that a lot has all the units it may have: one unit more then takes another's place,
    and moves the sum twice as far.
    """

    q: float
    sigma: float
    count: int
    full: float = 0.0
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class EncodedSteps:
    """`count` steps of one encoded sum."""

    event: Encoded
    count: int


@dataclass(frozen=True, slots=True)
class Sanitised:
    """`count` sanitised costs."""

    event: SanitisedCost
    count: int


@dataclass(frozen=True, slots=True)
class HiddenRuns:
    """`count` releases of the last iterate of one projected descent."""

    event: ProjectedDescent
    count: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything a list of charges releases, in the order-free form that composition allows.

    `mu` is the sensitivity over the standard deviation of all unsampled Gaussians together, the doubling of
    replace-one included; `sampled` holds each distinct sampled Gaussian step once, sorted, and `encoded` each distinct
    `Encoded`, sampled or not. `sanitised` holds what has a Rényi curve and nothing else, `hidden` what has
    bounds of its own (`dprecipe.mechanisms.pnsgd.theory.hidden`).

    `neighbouring` is the relation the rest has to be accounted for: votes alone cost under any what they cost under
    add-or-remove-one, and blanking out a unit is accounted as removing or as replacing it (`_accounted_as`).
    """

    mu: float
    sampled: tuple[Sampled, ...]
    neighbouring: Neighbouring
    encoded: tuple[EncodedSteps, ...] = ()
    sanitised: tuple[Sanitised, ...] = ()
    hidden: tuple[HiddenRuns, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps there are besides the unsampled Gaussians."""
        return sum(count for _, count in self._rates)

    @property
    def ever_sampled(self) -> float:
        """Probability that a given unit takes part in any step but the unsampled Gaussians, rounded up."""
        if self.sanitised or self.hidden or any(q == 1 for q, _ in self._rates):
            return 1.0
        logs = math.fsum(count * math.log1p(-q) for q, count in self._rates)
        return min(1.0, -math.expm1(logs) * (1 + 1e-12))

    @property
    def ever_full(self) -> float:
        """Bound of the probability that any lot is full that is cut."""
        return min(1.0, math.fsum(step.count * step.full for step in self.sampled))

    @property
    def largest_loss(self) -> float:
        """The largest loss of any outcome, of adding or removing a unit: finite where all noise is Laplace's, with
        which it is at most the shift in L1 norm over the scale. Rounded up."""
        beyond = self.mu > 0 or self.sampled or self.sanitised or self.hidden
        if beyond or any(e.event.family != "laplace" for e in self.encoded):
            return math.inf
        return math.fsum(e.count * _largest_loss(e.event) for e in self.encoded) * (1 + 1e-12)

    @property
    def gaussian(self) -> bool:
        """Whether there is nothing but unsampled Gaussians: `mu` says it all."""
        return not self.sampled and not self.encoded and not self.sanitised and not self.hidden

    @property
    def hidden_alone(self) -> HiddenRuns | None:
        """The hidden runs that are all there is, where their relation is the one asked about: anything else is in no
        company that a bound is known of."""
        alone = len(self.hidden) == 1 and self.mu == 0 and not (self.sampled or self.encoded or self.sanitised)
        return self.hidden[0] if alone and self.hidden[0].event.neighbouring == self.neighbouring else None

    @property
    def bounded(self) -> bool:
        """Whether a bound is known at all: batches of one size are compared where the number of units stays."""
        if self.hidden:
            return self.hidden_alone is not None
        return self.neighbouring is Neighbouring.REPLACE_ONE or not any(step.fixed for step in self.sampled)

    @property
    def _rates(self) -> list[tuple[float, int]]:
        return [(s.q, s.count) for s in self.sampled] + [(e.event.sampling_rate, e.count) for e in self.encoded]

    @property
    def empty(self) -> bool:
        return self.mu == 0 and self.gaussian


def _largest_loss(event: Encoded) -> float:
    whole = math.fsum(bound * count for bound, count in event.shifts) / event.noise_multiplier
    return whole if event.sampling_rate == 1 or whole > 600 else math.log1p(event.sampling_rate * math.expm1(whole))


def _sampled(event: Event) -> tuple[float, float, float, bool] | None:
    """Rate, multiplier, how often a lot is full, and whether lots are of one size, of a sampled Gaussian."""
    match event:
        case PoissonGaussian(q, sigma) if q < 1:
            return float(q), float(sigma), 0.0, False
        case TruncatedPoissonGaussian(q, sigma, size, most):
            # the data set with one unit more has `size` others
            return float(q), float(sigma), full_lots.probability(size, q, most), False
        case FixedSizeGaussian(size, lot, sigma):
            return lot / size, float(sigma), 0.0, True
    return None


def workload(charges: Iterable[Charge], neighbouring: Neighbouring) -> Workload:
    """Reduce charges to what composition needs.

    Unsampled Gaussians compose to one with μ = sqrt(Σ 1/σ²); sampling at rate 1 is no sampling; an epoch over disjoint
    lots costs one Gaussian (parallel composition). Replacing a unit moves an unsampled sum twice as far; blanking one
    out moves it as far as removing it. An encoded sum is kept as it is. A moved vote moves two counts by one each, so
    the most votes under Gaussian noise are one Gaussian of sensitivity √2, and under Laplace noise an encoded sum of
    two coordinates; the choice of the largest is post-processing. A vector that is bounded in L1 norm, under Laplace
    noise, costs most where one coordinate has all of the norm (docs/accounting.md): an encoded sum of one coordinate.

    Source: Dong, Roth & Su 2022, Corollary 3.3; McSherry 2009, Theorem 4; Papernot et al. 2018, Proposition 8.

    Raises:
        TypeError: an event that the accountants don't know.
    """
    squares: list[float] = []
    counts: dict[tuple[float, float, float, bool], int] = {}
    votes: list[float] = []
    encoded: dict[Encoded, int] = {}
    sanitised: dict[SanitisedCost, int] = {}
    hidden: dict[ProjectedDescent, int] = {}
    only_votes = True
    for charge in charges:
        event, count = charge.event, charge.count
        if count == 0:
            continue
        only_votes = only_votes and isinstance(event, VOTES)
        if isinstance(event, NoisyMax) and event.family == "laplace":
            event = Encoded(1.0, event.noise_multiplier, "laplace", None, ((1.0, 2),), False, _NO_CODEBOOK)
        if isinstance(event, PoissonLaplace):
            q, b = event.sampling_rate, event.noise_multiplier
            event = Encoded(q, b, "laplace", None, ((1.0, 1),), False, _NO_CODEBOOK)
        if isinstance(event, NoisyMax):
            votes.append(2 * count / float(event.noise_multiplier) ** 2)
        elif isinstance(event, NoisyThreshold | FilterRest):
            votes.append(count / float(event.noise_multiplier) ** 2)
        elif isinstance(event, SanitisedCost):
            sanitised[event] = sanitised.get(event, 0) + count
        elif isinstance(event, ProjectedDescent):
            hidden[event] = hidden.get(event, 0) + count
        elif isinstance(event, Encoded):
            encoded[event] = encoded.get(event, 0) + count
        elif (key := _sampled(event)) is not None:
            counts[key] = counts.get(key, 0) + count
        elif isinstance(event, Gaussian | PartitionedGaussian | PoissonGaussian):
            squares.append(count / float(event.noise_multiplier) ** 2)
        else:
            raise TypeError(f"no accountant knows the event {event!r}")
    neighbouring = Neighbouring.ADD_OR_REMOVE_ONE if only_votes else Neighbouring(neighbouring)
    if neighbouring is Neighbouring.ZERO_OUT_ONE and not hidden:
        displaced = any(full > 0 or fixed for _, _, full, fixed in counts)
        neighbouring = _accounted_as(displaced or any(event.exchanged for event in encoded))
    moved = 2.0 if neighbouring is Neighbouring.REPLACE_ONE else 1.0
    return Workload(
        math.sqrt(moved**2 * math.fsum(squares) + math.fsum(votes)),
        tuple(
            Sampled(q, sigma, counts[q, sigma, full, fixed], full, fixed) for q, sigma, full, fixed in sorted(counts)
        ),
        neighbouring,
        tuple(EncodedSteps(event, encoded[event]) for event in sorted(encoded, key=astuple)),
        tuple(Sanitised(event, sanitised[event]) for event in sorted(sanitised, key=astuple)),
        tuple(HiddenRuns(event, hidden[event]) for event in sorted(hidden, key=astuple)),
    )


def _accounted_as(displaced: bool) -> Neighbouring:
    """The relation whose bounds hold for blanking out a unit. `displaced`: its place can be one that another unit would
    have had (a batch with a largest or a fixed size, a micro-batch).

    A blanked unit stays where it is and adds nothing. Where units join independently of each other, the outcome is that
    of the other units alone, which is what removing it gives. Anywhere, it is a unit replaced by one that adds nothing,
    and the bounds of replace-one hold for every contribution within the clip norm, 0 among them (docs/accounting.md).
    """
    return Neighbouring.REPLACE_ONE if displaced else Neighbouring.ADD_OR_REMOVE_ONE


def uncapped(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """The same charges, had no batch a largest size."""
    return tuple(
        Charge(PoissonGaussian(charge.event.sampling_rate, charge.event.noise_multiplier), charge.count)
        if isinstance(charge.event, TruncatedPoissonGaussian)
        else charge
        for charge in charges
    )
