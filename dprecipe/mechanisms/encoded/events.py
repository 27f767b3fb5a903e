"""The event of a step of encoded gradients, and its cost. Formulas are imported inside methods, to keep this light."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, ClassVar

from pydantic import Field

from dprecipe.language.base import NonNegativeFloat, PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.box.box import BoxEvent, BoxSum, check_noise
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import MAX_ROWS, Digest, Event, Rate, Word, check_positive, check_rate
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ROWS_A_LINE = 64
"""Number of table rows that make a line of the ledger about as long as a plain event's."""


@register_event
@dataclass(frozen=True, slots=True)
class EncodedSum(BoxEvent):
    """Each unit takes part independently with probability `sampling_rate` (1: all do); its encoded gradient lies in
    a box, and noise of a symmetric distribution that falls with distance is added to each coordinate of the sum.

    `shifts` is the box: (bound of a coordinate's magnitude over the sensitivity, how many coordinates), bounds
    increasing; which coordinate has which bound depends on the unit. `noise_multiplier` is the distribution's scale
    over the same sensitivity, the codeword norm. `family` and `shape` name the distribution
    (`dprecipe.noise.distributions`).

    `exchanged`: a unit does not add its own code but exchanges the code of its micro-batch for another. Each code lies
    in half of the box, in its own arrangement, and the sensitivity is twice the codeword norm.

    `codebook` is the digest of the codebook whose envelope is the box. Gaussian noise needs only the norm: such a
    release is a `PoissonGaussian`.

    *Guarantees*: the privacy loss is at most that of the corner of the box (`privacy.box`), for adding or removing a
    unit; replacing a unit is removing it and adding another.

    | edge case | treatment |
    |---|---|
    | no unit joins | the sum is zero; noise is added and the event is charged |
    | noise multiplier 0, or not finite | `ValueError` |
    | all shifts 0 | `ValueError`: nothing would be bounded |
    | `sampling_rate` 1 | every unit takes part; no amplification |

    Source: Nasr, Shokri & Houmansadr 2020, Lemma 4; docs/explanation/encoding.md.
    """

    kind: ClassVar[str] = "encoded"
    sampling_rate: Rate
    noise_multiplier: PositiveFloat
    family: Word
    shape: PositiveFloat | None
    shifts: Annotated[tuple[tuple[NonNegativeFloat, PositiveInt], ...], Field(min_length=1, max_length=MAX_ROWS)] = (
        field(repr=False)
    )
    exchanged: bool
    codebook: Digest

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)
        check_rate(self.sampling_rate)
        check_noise(self.family, self.shape)
        if not 0 < len(self.shifts) <= MAX_ROWS:
            raise ValueError(f"expected between 1 and {MAX_ROWS} shifts, got {len(self.shifts)}")
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
    def box(self) -> BoxSum:
        """The release without the digest of its codebook."""
        return BoxSum(self.sampling_rate, self.noise_multiplier, self.family, self.shape, self.shifts, self.exchanged)

    @property
    def dimension(self) -> int:
        """Number of coordinates of the sum."""
        return self.box.dimension

    def accounted_under(self, relation: Neighbouring) -> Neighbouring:
        if relation is Neighbouring.ZERO_OUT_ONE:
            return Neighbouring.REPLACE_ONE if self.exchanged else Neighbouring.ADD_OR_REMOVE_ONE
        return relation

    def screening_bound(self, relation: Neighbouring) -> tuple[float, float] | None:
        return None if relation is Neighbouring.REPLACE_ONE else self.box.screening_bound()

    def stand_in(self) -> Event:
        return _stand_in(self)

    @property
    def line_weight(self) -> int:
        return -(-len(self.shifts) // _ROWS_A_LINE)

    def describe_sensitivity(self) -> str:
        largest = self.shifts[-1][0]
        distribution = self.family if self.shape is None else f"{self.family} ({self.shape:g})"
        return f"{self.dimension:,} coordinates by at most {largest:.3g} each, rank by rank; {distribution} noise"


@lru_cache(maxsize=8)
def _stand_in(event: EncodedSum) -> Event:
    from dprecipe.noise.distributions import Distribution

    information = Distribution(event.family, event.shape).fisher
    return PoissonGaussian(event.sampling_rate, event.box.gaussian_multiplier(information))


EVENTS = (EncodedSum, Gaussian, PoissonGaussian)
