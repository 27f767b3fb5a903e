"""Blocks of a certificate that mechanisms share: who is protected, the noise, its phases, the run's charges.

Frozen, strict, closed and finite, as recipes are: a certificate that a stranger hands over is checked against these
models before anything in it is used. A block of one mechanism is in its own `certificate.py`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints
from pydantic.json_schema import SkipJsonSchema

from dprecipe.data.names import name_unit
from dprecipe.language.base import Block, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Rendered = Annotated[str, SkipJsonSchema(), Field(exclude=True)]
"""A sentence that is no part of the file: it is rendered from the other fields when somebody reads them. So no file can
state another one, and a later version may say it in better words."""
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Probability = Annotated[float, Field(ge=0, le=1)]
Stop = Literal["completed", "budget", "interrupted", "no_model"]
NO_MODEL: Final = "no_model"
"""The `stop_reason` of a run that ended without a model: see `dprecipe.release.no_model`."""
Status = Literal["covered", "public", "declared", "private_internal", "none"]


class Published:
    """A base class for a run's publication about itself, which cannot be recomputed; most mechanisms have none."""

    __slots__ = ()


class PrivacyUnit(Block):
    """The unit that the guarantee protects."""

    noun: Word | None = Field(None, description="the recipe's own word for one unit, declared; null: none")
    column: Word | None = Field(
        None, description="whose value the records of one unit share; null: each record is a unit of its own"
    )
    max_records: PositiveInt
    enforced_by: Rendered = ""

    @property
    def name(self) -> str:
        """The name of one unit in sentences."""
        return name_unit(self.column, self.noun)


class NoiseFacts(Block):
    """The noise that was added; the last phase's, if there are several."""

    family: Word
    shape: PositiveFloat | None = Field(None, description="the family's parameter beyond its scale: df, or λ")
    multiplier: PositiveFloat = Field(
        description="scale over the clip norm, the codeword norm or the Lipschitz constant, or in votes"
    )
    scale: PositiveFloat | None = Field(
        None,
        description="absolute; of Gaussian noise, its standard deviation; where layers differ, of relative scale 1",
    )
    standard_deviation: PositiveFloat | None = Field(
        description="absolute, of the noise on the sum, at that scale; null: infinite"
    )
    added_to: Rendered = ""


class PhaseFacts(Block):
    """A part of a run with constant noise."""

    steps: PositiveInt
    family: Word
    shape: PositiveFloat | None
    multiplier: PositiveFloat
    clip_norm: PositiveFloat | None = Field(None, description="of mechanisms that clip gradients")
    expected_batch: PositiveFloat | None = Field(
        None, description="the public divisor of its sums; null: the one under aggregation"
    )


class AggregationFacts(Block):
    """The way contributions become one vector."""

    of: Rendered = ""
    divisor: PositiveFloat | None = Field(description="a public constant; null: nothing is divided")
    filter: Annotated[str | None, SkipJsonSchema(), Field(exclude=True)] = None
    """The filter of noisy gradients, at no price; None where there is none. Rendered, as `of` is."""


class MechanismFacts(Block):
    """The way information left the private data. Each mechanism defines its own block, identified by `kind`."""

    kind: Word


class NoisyFacts(MechanismFacts):
    """Facts of mechanisms that add noise to one vector at a time."""

    noise: NoiseFacts = Field(description="of the last phase, where there are several")
    phases: Annotated[tuple[PhaseFacts, ...], Field(max_length=1000)] | None = None
    aggregation: AggregationFacts

    @property
    def multipliers(self) -> str:
        """The noise multiplier; for a schedule, its first and last value."""
        phases = [phase.multiplier for phase in self.phases or ()]
        if not phases or min(phases) == max(phases):
            return f"{self.noise.multiplier:g}"
        return f"{phases[0]:g} to {phases[-1]:g}"


class Access(Block):
    """One use of data, and its relation to the claim."""

    status: Status
    text: Rendered = ""


class BudgetFacts(Block):
    """The cap, and what was spent of it."""

    epsilon: NonNegativeFloat = Field(description="0 where δ alone covers the events")
    delta: Annotated[float, Field(gt=0, lt=1)]
    spent: NonNegativeFloat
    stop_reason: Stop
    attempts: PositiveInt
    resumes: NonNegativeInt
    events_planned: PositiveInt
    events_settled: NonNegativeInt
    events_reserved_unsettled: NonNegativeInt = Field(description="charged as if they had run")
    torn_line: bool = Field(description="the ledger's last line was cut short and left out")
