"""Events: what was released, not how, and what each costs. Only an event's own class knows its kind.

An event is an immutable value that carries its own accounting: accountants compose what events provide, the ledger and
the certificate read and write events by `kind`, and the gate asks them for their noise. A new kind of release is one
class:

    @register_event
    @dataclass(frozen=True, slots=True)
    class Coin(Event):
        kind: ClassVar[str] = "coin"
        bias: PositiveFloat
        ...

Define it where it is released: in a mechanism's `events.py`, or in `privacy/noisy_sums.py` if several mechanisms
release it. Such a module must not import numpy at the top: methods import the formulas they need.

Compatibility contract: a field, once written to a ledger or a certificate, is never removed and never changes its
meaning.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_type_hints

from pydantic import Field

from dprecipe.language.base import PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.event_kinds import event_kinds

if TYPE_CHECKING:
    from dprecipe.noise.distributions import Distribution
    from dprecipe.privacy.correlation.strategies import Strategy
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair
    from dprecipe.privacy.profile import Profile
    from dprecipe.privacy.questions import Question
    from dprecipe.privacy.sampling import Sampling
    from dprecipe.privacy.worst_case import Items

MAX_VALUE = 10**15
"""The largest absolute value of any number in an untrusted event."""
MAX_ROWS = 4096
"""The largest number of rows of a table within an event."""

Rate = Annotated[float, Field(gt=0, le=1)]
Word = Annotated[str, Field(min_length=1, max_length=200)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
NormKind = Literal["l1", "l2"]


def one_of(*words: str) -> Any:
    """Returns the constraint of a field whose value is one of these words."""
    return Field(pattern=f"^({'|'.join(words)})$", json_schema_extra={"enum": list(words)})


class Event:
    """One release. Subclasses are frozen dataclasses; all fields are public constants of JSON types.

    An event that composes overrides `squared_mu` (an unsampled Gaussian mechanism), or `rdp` and, if it has a
    privacy-loss distribution, `losses`. An event that does not compose overrides `profile`; one that has better bounds
    by itself than together with others overrides all three, and `composes`. The defaults below fit most events.

    Formal guarantee: for every pair of neighbouring data sets under `relation`, whatever was released before, the two
    distributions of this release have Rényi divergences of at most `rdp(orders, relation)`, and are dominated by
    `losses(relation, …)`, in both directions.

    | case | what it costs |
    |---|---|
    | no unit takes part (an empty batch) | the same: it is one outcome of sampling, and noise is added to 0 |
    | no noise (σ = 0) | refused by the constructor |
    | a scale that is NaN or infinite | refused by the constructor |
    | one unit in the data set | the same as with any number of units; a batch of fixed size is refused |
    | every unit takes part (q = 1) | no sampling: the event is an unsampled one |
    """

    __slots__ = ()
    kind: ClassVar[str]
    integrates: ClassVar[bool] = False
    """True if the event's Rényi curve needs an integral at each fractional order, which is slow."""
    has_losses: ClassVar[bool] = True
    """True if the event has a privacy-loss distribution. If not, it has only a Rényi curve."""
    exact_losses: ClassVar[bool] = True
    """True if the event's distribution is no looser than its Rényi curve."""
    exact_curve: ClassVar[bool] = True
    """True if the event's Rényi curve is no looser than that of its dominating pair."""
    hides_iterates: ClassVar[bool] = False
    """True if nothing of the event is seen before its end. If it is restarted, or continued by a later attempt, it
    still releases one transcript and is charged once."""
    composes: ClassVar[bool] = False
    """True if an event with a `profile` also has a Rényi curve and a dominating pair, for its profile's relation, so
    that it composes with other releases. If it is alone, its profile counts."""
    decides_sequel: ClassVar[bool] = False
    """True if results decide how many of these, or of other events, follow: a filter bounds their Rényi divergences and
    μ, and theorems that fix all events in advance don't apply."""
    cross_check_tolerance: ClassVar[tuple[float, float]] = (1e-3, 2e-4)
    """The margin by which the cross-check accountant's ε may exceed the claim: (relative, absolute). Both are upper
    bounds of one true ε, computed on different grids. For q from 1e-4 to 0.9, σ from 0.4 to 30 and up to 100,000 steps,
    the other library's ε was at most 1e-4 (relative) above ours, and at most 1e-4 (absolute) for small ε. A claim at or
    above the true ε passes; a claim below it by more than the margin is rejected."""

    renyi_tolerance: ClassVar[float] = 1e-9
    """The relative margin by which the numerical bound of the event's loss distribution may exceed its Rényi bound: as
    much as a grid can lose."""

    # How it composes

    def accounted_under(self, relation: Neighbouring) -> Neighbouring:
        """Returns the relation whose bounds hold for `relation`: itself, or add-or-remove-one or replace-one instead of
        zero-out-one. If events of one run differ, all of them are accounted under replace-one.

        A unit that is zeroed out keeps its place and adds nothing. If units join independently of each other, the
        outcome is the same as if the unit were removed. If another unit could have taken its place (a batch with a
        maximum or fixed size, a micro-batch), zeroing out is replacing the unit by one that adds nothing
        (docs/explanation/accounting.md).
        """
        return Neighbouring.ADD_OR_REMOVE_ONE if relation is Neighbouring.ZERO_OUT_ONE else relation

    def is_bounded(self, relation: Neighbouring) -> bool:
        """Returns True if any bound is known under `relation` (add-or-remove-one or replace-one)."""
        return True

    def squared_mu(self, count: int, relation: Neighbouring) -> float | None:
        """Returns μ² of `count` of these together, exactly, if they are Gaussian mechanisms without sampling: squared
        sensitivity over variance. None for other events."""
        return None

    @property
    def participation(self) -> float:
        """Probability that a given unit takes part."""
        return 1.0

    @property
    def full_chance(self) -> float:
        """Upper bound on the probability that the batch is full, so that one more unit displaces another; 0 where
        batches have no maximum size."""
        return 0.0

    def uncapped(self) -> Event:
        """Returns the same event without a maximum batch size. The two differ only with probability `full_chance`."""
        return self

    def unamplified(self, relation: Neighbouring) -> Event:
        """Returns the same release as if everyone knew who takes part; costs no less under `relation`."""
        return self

    def together(self, size: int, relation: Neighbouring) -> Event | None:
        """Returns an event whose cost for one unit is this event's for `size` units together, exactly; None where no
        such event is known, and the curve of one unit is extended (`privacy.groups`)."""
        return None

    def among_fewer(self, fewer: int, relation: Neighbouring) -> Event | None:
        """Returns an event that costs no less than this one in data sets with up to `fewer` units less, as units of a
        group leave one after the other; None where none is known. Where the cost does not depend on the number of
        units, that is the event itself."""
        return self

    @property
    def max_loss(self) -> float:
        """The largest privacy loss of any outcome when a unit is added or removed; infinite for most noise."""
        return math.inf

    @property
    def max_order(self) -> float:
        """The order from which on the Rényi divergence is infinite."""
        return math.inf

    def needs_group_privacy(self, relation: Neighbouring) -> bool:
        """Returns True if replacing a unit is accounted as removing one and adding another (`replacement`)."""
        return False

    def of_null_unit(self) -> Event:
        """Returns an event that costs no less, where the unit that is added or removed contributes nothing."""
        return self

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        """Returns r(α) of one event, the larger of both directions: (orders,), for orders α > 1 and add-or-remove-one
        or replace-one; infinite where no bound is known."""
        raise TypeError(f"an event of kind {self.kind} has no Rényi curve")

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        """Returns privacy-loss distributions of one event on a grid of spacing `step`; about `tail` of the mass, at
        most, is charged to infinity.

        Raises:
            GridError: it would need too many points; a coarser grid may do.
            NoPairError: no dominating pair is known, or its losses exceed the range of doubles.
        """
        from dprecipe.privacy.loss import NoPairError

        raise NoPairError

    def items(self) -> Items | None:
        """Returns the cost of an item, shared or unique, for an event whose cost depends on the neighbouring data sets:
        on how many of a unit's items no other unit has. None for all other events."""
        return None

    def profile(self) -> Profile | None:
        """Returns δ(ε) of an event that is assessed as a whole if it is alone (a run that releases only its last
        iterate); None for all other events. It composes with others only if `composes` is true."""
        return None

    # Approximations, and what checks them

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        """Returns (q, σ) of a Poisson-sampled Gaussian under add-or-remove-one whose Rényi divergences at integer
        orders are at least this event's; None if no such bound is proved. Uses the standard library only."""
        return None

    def stand_in(self) -> Event:
        """Returns a Gaussian event of about the same cost that is fast to account for: the starting point of
        calibration. Not a bound."""
        return self

    def cross_check(self) -> Question:
        """Returns this event in the cross-check accountant's terms, computed without this package's own formulas."""
        raise NotImplementedError(self.kind)

    # What a noisy sum draws

    @property
    def steps(self) -> int:
        """The number of steps of the run that the event covers, whether their noisy sums are released or not."""
        return 1

    def sampling(self) -> Sampling | None:
        """Returns the rule by which units take part; None for an event that is not a noisy sum over a batch."""
        return None

    def noise_distribution(self) -> Distribution | None:
        """Returns the distribution of the noise on each coordinate, at scale 1; None for an event that is not a noisy
        sum."""
        return None

    @property
    def strategy(self) -> Strategy | None:
        """The strategy by which noise is correlated over steps; None: it is independent."""
        return None

    @property
    def norm(self) -> NormKind:
        """The norm in which one unit's contribution to the sum is bounded."""
        return "l2"

    @property
    def multipliers(self) -> tuple[float, ...]:
        """The noise multipliers (scale of the noise over the sensitivity), in order if they change."""
        return (float(self.noise_multiplier),) if hasattr(self, "noise_multiplier") else ()

    def scale_noise(self, factor: float) -> Event | None:
        """Returns the same release with its noise times `factor` > 0; None if the event's noise is not one number."""
        if "noise_multiplier" not in {field.name for field in dataclasses.fields(self)}:  # type: ignore[arg-type]
            return None
        return dataclasses.replace(self, noise_multiplier=self.multipliers[0] * factor)  # type: ignore[type-var]

    @property
    def line_weight(self) -> int:
        """Length of its line in a ledger, relative to that of a plain event."""
        return 1

    def describe_sensitivity(self) -> str:
        """Describes how far one unit moves the value that noise is added to, in the units of `noise_multiplier`."""
        return "the sum by 1 in L2 norm"


@dataclass(frozen=True, slots=True)
class Charge:
    """An event and the number of times it happened: one entry of a run-length encoding."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"expected count >= 0, got {self.count}")

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "kind": self.event.kind, **event_fields(self.event)}


def event_fields(event: Event) -> dict[str, Any]:
    """Returns the fields of an event by name, as JSON types (tuples for lists)."""
    values: dict[str, Any] = asdict(event)  # type: ignore[call-overload]
    for name in values:
        value = getattr(event, name)
        if isinstance(value, tuple) and value and isinstance(value[0], Charge):
            values[name] = tuple(charge.to_json() for charge in value)
    return values


def charge_from_json(data: Mapping[str, Any]) -> Charge:
    """Reads a charge written by `Charge.to_json`. The input is untrusted.

    Raises:
        ValueError: unknown kind, missing, unknown or mistyped fields, values out of range.
    """
    from dprecipe.privacy.event_fields import decode_field

    fields = dict(data)
    count, kind = fields.pop("count", None), fields.pop("kind", None)
    kinds = event_kinds()
    cls = kinds.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"unknown event kind {kind!r}; known: {', '.join(kinds)}")
    expected = field_types(cls.kind)
    if set(fields) != set(expected):
        raise ValueError(f"event {kind}: expected the fields {sorted(expected)}, got {sorted(fields)}")
    values = {name: decode_field(f"event {kind}: {name}", value, expected[name]) for name, value in fields.items()}
    return Charge(cls(**values), decode_field(f"event {kind}: count", count, PositiveInt))


@lru_cache(maxsize=128)
def field_types(kind: str) -> Mapping[str, Any]:
    """Returns the annotation of each field of a kind of event, constraints included."""
    cls = event_kinds()[kind]
    hints = get_type_hints(cls, include_extras=True)
    return types.MappingProxyType({field.name: hints[field.name] for field in dataclasses.fields(cls)})  # type: ignore[arg-type]


def check_positive(**values: float) -> None:
    """Checks values in the constructor of an event.

    Raises:
        ValueError: one of the values is not positive and finite.
    """
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):  # written so that NaN fails
            raise ValueError(f"expected a finite {name} > 0, got {value}")


def check_rate(sampling_rate: float) -> None:
    """Checks a sampling rate in the constructor of an event.

    Raises:
        ValueError: it is no probability above 0.
    """
    check_positive(sampling_rate=sampling_rate)
    if not sampling_rate <= 1:
        raise ValueError(f"expected sampling_rate <= 1, got {sampling_rate}")


def run_lengths(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """Merges neighbouring runs of the same event and drops empty ones; the order is kept."""
    merged: list[Charge] = []
    for charge in charges:
        if not charge.count:
            continue
        if merged and merged[-1].event == charge.event:
            charge = Charge(charge.event, merged.pop().count + charge.count)
        merged.append(charge)
    return tuple(merged)


def count_by_event(charges: Iterable[Charge]) -> Counter[Event]:
    """Counts each event, in the order of first appearance."""
    counts: Counter[Event] = Counter()
    for charge in charges:
        counts[charge.event] += charge.count
    return counts


def order_charges(charged: Mapping[Event, int]) -> tuple[Charge, ...]:
    """Returns a multiset of events in its one canonical order, however it came about: an account compares them."""
    charges = [Charge(event, count) for event, count in charged.items() if count > 0]
    return tuple(sorted(charges, key=lambda charge: json.dumps(charge.to_json(), sort_keys=True)))


def count_events(charges: Iterable[Charge]) -> int:
    """Returns the total number of events."""
    return sum(charge.count for charge in charges)


def take_first(charges: Sequence[Charge], count: int) -> tuple[Charge, ...]:
    """Returns the first `count` events of a run-length list."""
    taken: list[Charge] = []
    for charge in charges:
        part = min(charge.count, count)
        if part:
            taken.append(Charge(charge.event, part))
        count -= part
    return tuple(taken)


def drop_first(charges: Sequence[Charge], count: int) -> tuple[Charge, ...]:
    """Returns all but the first `count` events of a run-length list."""
    left: list[Charge] = []
    for charge in charges:
        part = min(charge.count, count)
        if part < charge.count:
            left.append(Charge(charge.event, charge.count - part))
        count -= part
    return tuple(left)
