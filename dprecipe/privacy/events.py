"""Privacy events: what was released, not how. The accountants see nothing else.

Compatibility contract: events are immutable values; a field, once written to a ledger or a certificate, is never
removed and never changes its meaning. A new kind of release is a new kind of event.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import UnionType
from typing import Any, ClassVar

from dprecipe.noise import families
from dprecipe.privacy.adjacency import Neighbouring

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


@dataclass(frozen=True, slots=True)
class PoissonLaplace:
    """As `PoissonGaussian` (1: every unit takes part), of sums of vectors that are bounded in L1 norm.

    `noise_multiplier` is the scale of Laplace noise on each coordinate over that norm.
    """

    kind: ClassVar[str] = "poisson_laplace"
    sampling_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)
        if not self.sampling_rate <= 1:
            raise ValueError(f"expected sampling_rate <= 1, got {self.sampling_rate}")


@dataclass(frozen=True, slots=True)
class TruncatedPoissonGaussian:
    """As `PoissonGaussian` over `size` units, but of a lot with more than `most` of them a uniformly random subset of
    `most` takes part.

    One unit more or less then changes who else takes part: the sum moves by up to two clip norms where a lot is full.
    """

    kind: ClassVar[str] = "truncated_poisson_gaussian"
    sampling_rate: float
    noise_multiplier: float
    size: int
    most: int

    def __post_init__(self) -> None:
        _positive(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)
        if not self.sampling_rate < 1:
            raise ValueError(f"expected sampling_rate < 1, got {self.sampling_rate}")
        if not 0 < self.most <= self.size:
            raise ValueError(f"expected 0 < most <= size, got {self.most} and {self.size}")


@dataclass(frozen=True, slots=True)
class FixedSizeGaussian:
    """A uniformly random subset of `lot` of `size` units takes part, drawn without replacement; otherwise as
    `Gaussian`, with `noise_multiplier` over one clip norm.

    It has a bound for replacing a unit, which moves the sum by up to two clip norms, and for nothing else.
    """

    kind: ClassVar[str] = "fixed_size_gaussian"
    size: int
    lot: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive(noise_multiplier=self.noise_multiplier)
        if not 0 < self.lot < self.size:
            raise ValueError(f"expected 0 < lot < size, got {self.lot} and {self.size}")


MOST_ROWS = 4096
"""Of a table within an event."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Each unit takes part independently with probability `sampling_rate` (1: all do); its encoded gradient lies in
    a box, and noise of a symmetric law that falls with distance is added to each coordinate of the sum.

    `shifts` is the box: (bound of a coordinate's magnitude over the sensitivity, how many coordinates), bounds
    increasing; which coordinate has which bound depends on the unit. `noise_multiplier` is the law's scale over the
    same sensitivity, the codeword norm. `family` and `shape` name the law (`dprecipe.noise.laws`).

    `exchanged`: a unit does not add its own code but exchanges the code of its micro-batch for another. Both lie in
    the half of the box, in arrangements of their own, and the sensitivity is twice the codeword norm.

    `codebook` is the digest of the codebook whose envelope the box is. Gaussian noise needs the norm alone: such a
    release is a `PoissonGaussian`.
    """

    kind: ClassVar[str] = "encoded"
    sampling_rate: float
    noise_multiplier: float
    family: str
    shape: float | None
    shifts: tuple[tuple[float, int], ...] = field(repr=False)
    exchanged: bool
    codebook: str

    def __post_init__(self) -> None:
        _positive(noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)
        if not self.sampling_rate <= 1:
            raise ValueError(f"expected sampling_rate <= 1, got {self.sampling_rate}")
        families.check(self.family, self.shape)
        if self.family == "gaussian":
            raise ValueError("an encoded sum with Gaussian noise is a poisson_gaussian event")
        if not 0 < len(self.shifts) <= MOST_ROWS:
            raise ValueError(f"expected between 1 and {MOST_ROWS} shifts, got {len(self.shifts)}")
        last = -1.0
        for bound, count in self.shifts:
            if not (last < bound <= 1e6 and count > 0):  # written so that NaN fails
                raise ValueError("expected increasing shifts >= 0 and counts > 0")
            last = bound
        if not self.shifts[0][0] >= 0 or not last > 0:
            raise ValueError("expected shifts >= 0, not all of them 0")
        if not _DIGEST.fullmatch(self.codebook):
            raise ValueError("expected the codebook's digest, sha256:...")

    @property
    def dimension(self) -> int:
        """How many coordinates the sum has."""
        return sum(count for _, count in self.shifts)


@dataclass(frozen=True, slots=True)
class NoisyMax:
    """The class with the most votes, noise added to the count of each.

    Units are dealt to voters, one voter a unit, so adding, removing or replacing a unit moves at most one vote from one
    class to another: two counts by one each. `noise_multiplier` is the noise's scale in votes: for `gaussian` its
    standard deviation, for `laplace` its scale parameter.
    """

    kind: ClassVar[str] = "noisy_max"
    family: str
    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive(noise_multiplier=self.noise_multiplier)
        if self.family not in ("gaussian", "laplace"):
            raise ValueError(f"expected family gaussian or laplace, got {self.family!r}")


@dataclass(frozen=True, slots=True)
class NoisyThreshold:
    """Whether the largest count of votes, less a public constant a class, reaches a threshold with Gaussian noise.

    One moved vote moves it by at most one; `noise_multiplier` is the standard deviation in votes.
    """

    kind: ClassVar[str] = "noisy_threshold"
    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive(noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class FilterRest:
    """What a filter allowed and the run left: as much as a Gaussian of sensitivity 1 and this standard deviation.

    Which events come next was decided by what earlier ones released, so that the sum of what ran is no bound known in
    advance. The filter's limit is one: the rest counts as spent.
    """

    kind: ClassVar[str] = "filter_rest"
    noise_multiplier: float

    def __post_init__(self) -> None:
        _positive(noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class SanitisedCost:
    """A cost that depends on the votes, with Gaussian noise of `noise_multiplier` times its `beta`-smooth sensitivity.

    And the logarithm of that sensitivity, which moves by at most `beta`, with Gaussian noise of `scale_multiplier`
    times `beta`. The sensitivity is to one moved vote a query, which is what a unit does under either relation.
    """

    kind: ClassVar[str] = "sanitised_cost"
    beta: float
    noise_multiplier: float
    scale_multiplier: float

    def __post_init__(self) -> None:
        _positive(beta=self.beta, noise_multiplier=self.noise_multiplier, scale_multiplier=self.scale_multiplier)


@dataclass(frozen=True, slots=True)
class ProjectedDescent:
    """The last iterate of a projected noisy descent, none of whose other iterates anybody sees: one event, however many
    steps it takes.

    Records stand in an order, in lots of `lot` (the last may be short, and is divided by `lot` all the same), and step
    t uses lot t modulo ceil(`size` / `lot`). A step is a map of the last iterate, noise of law `family`, and the
    projection on a convex set. `order`: `sequential`, that of the file, so that the guarantee depends on where a record
    stands; `permuted`, drawn once, uniformly and independently of the data, for all passes. `stop`: `last`, after all
    steps; `random`, after a number of steps drawn uniformly from 1 to all of them.

    `stages`: (steps, noise_multiplier, contraction, diameter), one after the other: the noise's scale over the farthest
    that one record, changed as `neighbouring` says, moves a step that uses it; the Lipschitz constant of a step's map;
    the diameter of the set over the noise's scale.

    It holds for `neighbouring` alone, and the distance is the change's own: nothing is doubled.
    """

    kind: ClassVar[str] = "projected_descent"
    neighbouring: str
    family: str
    size: int
    lot: int
    order: str
    stop: str
    stages: tuple[tuple[int, float, float, float], ...] = field(repr=False)

    def __post_init__(self) -> None:
        for name, words in (
            ("neighbouring", (Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE)),
            ("family", ("gaussian", "laplace")),
            ("order", ("sequential", "permuted")),
            ("stop", ("last", "random")),
        ):
            if getattr(self, name) not in words:
                raise ValueError(f"expected {name} {' or '.join(words)}, got {getattr(self, name)!r}")
        if not 0 < self.lot <= self.size:
            raise ValueError(f"expected 0 < lot <= size, got {self.lot} and {self.size}")
        if not 0 < len(self.stages) <= MOST_ROWS:
            raise ValueError(f"expected between 1 and {MOST_ROWS} stages, got {len(self.stages)}")
        for steps, noise_multiplier, contraction, diameter in self.stages:
            _positive(steps=steps, noise_multiplier=noise_multiplier, diameter=diameter)
            if not 0 <= contraction <= 1:  # written so that NaN fails
                raise ValueError(f"expected 0 <= contraction <= 1, got {contraction}")

    @property
    def lots(self) -> int:
        """Steps in one pass over the records."""
        return -(-self.size // self.lot)

    @property
    def steps(self) -> int:
        """All steps, of all passes."""
        return sum(steps for steps, *_ in self.stages)


HIDDEN = (ProjectedDescent,)
"""Events that release what they end with and nothing before: begun again, or carried on by a later attempt, they
release one transcript all the same."""

VOTES = (NoisyMax, NoisyThreshold, FilterRest, SanitisedCost)
"""Events that a unit can move by one vote, whether it is added, removed or replaced."""

Event = (
    Gaussian
    | PoissonGaussian
    | PartitionedGaussian
    | PoissonLaplace
    | TruncatedPoissonGaussian
    | FixedSizeGaussian
    | Encoded
    | ProjectedDescent
    | NoisyMax
    | NoisyThreshold
    | FilterRest
    | SanitisedCost
)

KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        *(Gaussian, PoissonGaussian, PartitionedGaussian, PoissonLaplace, TruncatedPoissonGaussian, FixedSizeGaussian),
        *(Encoded, *HIDDEN, *VOTES),
    )
}


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
    expected = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    if set(fields) != set(expected):
        raise ValueError(f"event {kind}: expected the fields {sorted(expected)}, got {sorted(fields)}")
    values = {name: _decoded(f"event {kind}: {name}", value, expected[name]) for name, value in fields.items()}
    return Charge(cls(**values), _decoded(f"event {kind}: count", count, "int"))


def _decoded(what: str, value: Any, kind: str) -> Any:
    """A field as its dataclass holds it, from JSON types. The input is untrusted."""
    if kind.endswith(" | None"):
        return None if value is None else _decoded(what, value, kind.removesuffix(" | None"))
    if kind.startswith("tuple[tuple"):
        kinds = kind.removeprefix("tuple[tuple[").removesuffix("], ...]").split(", ")
        if not isinstance(value, list | tuple) or len(value) > MOST_ROWS:
            raise ValueError(f"{what} is not a list of at most {MOST_ROWS} rows")
        if not all(isinstance(row, list | tuple) and len(row) == len(kinds) for row in value):
            raise ValueError(f"{what} is not a list of rows of {len(kinds)}")
        return tuple(
            tuple(_decoded(what, entry, expected) for entry, expected in zip(row, kinds, strict=True)) for row in value
        )
    types: dict[str, type | UnionType] = {"str": str, "bool": bool, "int": int, "float": int | float}
    if not isinstance(value, types[kind]) or isinstance(value, bool) is not (kind == "bool"):
        raise ValueError(f"{what} is not of the right type")
    if isinstance(value, int | float):
        if not abs(value) <= LARGEST:
            raise ValueError(f"{what} is out of all proportion")
        return float(value) if kind == "float" else value
    return value


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
