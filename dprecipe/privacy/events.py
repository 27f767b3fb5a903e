"""Privacy events: what was released, not how. The accountants see nothing else.

Compatibility contract: events are immutable values; a field, once written to a ledger or a certificate, is never
removed and never changes its meaning. A new kind of release is a new kind of event.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

LARGEST = 10**15
"""No count and no scale of an untrusted event may exceed this."""


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):  # written so that NaN fails
            raise ValueError(f"expected a finite {name} > 0, got {value}")


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Every unit takes part; Gaussian noise is added to the sum.

    `noise_multiplier` is the standard deviation divided by what one added or removed unit can move the sum (the
    clip norm). Replacing a unit moves it twice as far; the accountant knows.
    """

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive(noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class PoissonGaussian:
    """Each unit takes part independently with probability `sampling_rate`; otherwise as `Gaussian`."""

    kind: ClassVar[str] = "poisson_gaussian"
    sampling_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)
        if not self.sampling_rate <= 1:
            raise ValueError(f"expected sampling_rate <= 1, got {self.sampling_rate}")


@dataclass(frozen=True, slots=True)
class PartitionedGaussian:
    """One epoch over `lots` disjoint lots: every unit takes part in exactly one, dealt independently of the data.

    Given the dealing, only one lot depends on a unit, so the epoch costs what one `Gaussian` costs (parallel
    composition); no amplification is claimed for the dealing.
    """

    kind: ClassVar[str] = "partitioned_gaussian"
    noise_multiplier: float
    lots: int

    def __post_init__(self) -> None:
        _positive(noise_multiplier=self.noise_multiplier, lots=self.lots)


Event = Gaussian | PoissonGaussian | PartitionedGaussian

KINDS: dict[str, type[Event]] = {cls.kind: cls for cls in (Gaussian, PoissonGaussian, PartitionedGaussian)}


@dataclass(frozen=True, slots=True)
class Charge:
    """An event and how many times it happened: one run of a run-length encoding."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"expected count >= 0, got {self.count}")

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "kind": self.event.kind, **asdict(self.event)}


def charge_from_json(data: Mapping[str, Any]) -> Charge:
    """Read a charge written by `Charge.to_json`. The input is untrusted.

    Raises:
        ValueError: unknown kind, missing, unknown or mistyped fields, values out of range.
    """
    fields = dict(data)
    count, kind = fields.pop("count", None), fields.pop("kind", None)
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"unknown event kind {kind!r}; known: {', '.join(KINDS)}")
    expected = {field.name: field for field in dataclasses.fields(cls)}
    if set(fields) != set(expected):
        raise ValueError(f"event {kind}: expected the fields {sorted(expected)}, got {sorted(fields)}")
    for name, value in {"count": count, **fields}.items():
        integral = name == "count" or expected[name].type == "int"
        if isinstance(value, bool) or not isinstance(value, int if integral else int | float):
            raise ValueError(f"event {kind}: {name} is not a number of the right type")
        if not abs(value) <= LARGEST:
            raise ValueError(f"event {kind}: {name} is out of all proportion")
    numbers = {k: v if expected[k].type == "int" else float(v) for k, v in fields.items()}
    return Charge(cls(**numbers), count)  # type: ignore[arg-type]


def run_lengths(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """Merge neighbouring runs of the same event and drop empty ones; the order is kept."""
    merged: list[Charge] = []
    for charge in charges:
        if not charge.count:
            continue
        if merged and merged[-1].event == charge.event:
            charge = Charge(charge.event, merged.pop().count + charge.count)
        merged.append(charge)
    return tuple(merged)


def total(charges: Iterable[Charge]) -> int:
    """How many events there are."""
    return sum(charge.count for charge in charges)


def take_first(charges: Sequence[Charge], count: int) -> tuple[Charge, ...]:
    """The first `count` events of a run-length list."""
    taken: list[Charge] = []
    for charge in charges:
        part = min(charge.count, count)
        if part:
            taken.append(Charge(charge.event, part))
        count -= part
    return tuple(taken)


def drop_first(charges: Sequence[Charge], count: int) -> tuple[Charge, ...]:
    """All but the first `count` events of a run-length list."""
    left: list[Charge] = []
    for charge in charges:
        part = min(charge.count, count)
        if part < charge.count:
            left.append(Charge(charge.event, charge.count - part))
        count -= part
    return tuple(left)
