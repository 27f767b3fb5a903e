"""The base of every block of a recipe, and the kinds of number a recipe speaks of, schedules among them.

Every block is frozen, strict (a quoted number is no number, `true` is not 1.0), closed (unknown keys are
refused) and finite. Blocks hold structure only: checks that span blocks are in `dprecipe.planning.rules`.

Where the cost of a step depends on a schedule, the account cuts it into pieces of constant value
(`noisy_sum.sampling`), and the run takes exactly these values: it runs what was accounted for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
)

from dprecipe.text.spelling import normalise_text


class Block(BaseModel):
    """A block of a recipe."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class SparseBlock(Block):
    """A block that is written without keys that are None: all such keys, or those of `left_out`. So what names no such
    key has the digest that it had before there was one."""

    left_out: ClassVar[tuple[str, ...] | None] = None

    @model_serializer(mode="wrap")
    def leave_out_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Returns the keys that are written."""
        names = self.left_out
        written = serialize(self).items()
        return {name: v for name, v in written if v is not None or (names is not None and name not in names)}


Auto = Literal["auto"]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, AfterValidator(normalise_text), Field(min_length=1)]
"""The name of a column or a class, or a value that fields are compared with; normalised as they are."""
NAMES_ALIKE: Final = "names_alike"
"""The type of a validator's error: two keys of a mapping look equal."""


def word_form(value: Any) -> str:
    """Returns the tag of a value that may be a word, a number or a block; a union so tagged reports one branch."""
    if isinstance(value, str):
        return "word"
    return "block" if isinstance(value, Mapping | BaseModel) else "number"


SolvableFloat = Annotated[
    Annotated[Auto, Tag("word")] | Annotated[PositiveFloat, Tag("number")], Discriminator(word_form)
]
"""A positive number, or `auto`: the compiler solves for it."""

SolvableInt = Annotated[Annotated[Auto, Tag("word")] | Annotated[PositiveInt, Tag("number")], Discriminator(word_form)]


class Schedule(Block):
    """A number that moves from one value to another, then stays."""

    schedule: Literal["linear", "cosine"]
    from_: PositiveFloat = Field(alias="from", description="at the first step")
    to: NonNegativeFloat = Field(description="at the last step of the schedule")
    epochs: PositiveFloat | None = Field(None, description="length; the whole run when left out")

    def at(self, step: int, steps: int) -> float:
        """Returns the value at a step, counted from 0, of a schedule that takes `steps` of them."""
        last = steps - 1
        if step >= last:
            return self.to
        progress = step / last
        if self.schedule == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.from_ + (self.to - self.from_) * progress
