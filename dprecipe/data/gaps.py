"""Gaps: the value of a missing field of a column, and a feature that says that it was missing. No numpy."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Discriminator, Field

from dprecipe.language.base import Block

Whole = Annotated[int, Field(ge=-(2**64), le=2**64)]
"""A whole number that files have types for."""
FILL = "what an empty field or NA counts as"
INDICATOR = "adds a feature, the column's last: 1 where the field was missing, else 0"


class Gap(Block):
    """A missing field's value, and with `indicator` a feature that says that it was missing."""

    if TYPE_CHECKING:

        @property
        def fill(self) -> Any: ...
        @property
        def indicator(self) -> bool: ...


class NumberGap(Gap):
    """See `Gap`; of a number."""

    fill: float = Field(description=FILL)
    indicator: bool = Field(False, description=INDICATOR)


class WholeGap(Gap):
    """See `Gap`; of a whole number."""

    fill: Whole = Field(description=FILL)
    indicator: bool = Field(False, description=INDICATOR)


class AnswerGap(Gap):
    """See `Gap`; of a no or yes."""

    fill: bool = Field(description=FILL)
    indicator: bool = Field(False, description=INDICATOR)


class DateGap(Gap):
    """See `Gap`; of a day."""

    fill: date = Field(description=FILL)
    indicator: bool = Field(False, description=INDICATOR)


def _gap_form(value: object) -> str:
    """Returns the tag of what `missing` states; a union so tagged reports one branch."""
    return "block" if isinstance(value, Mapping | BaseModel) else "value"


GAP_FORM = Discriminator(_gap_form)
"""The form of `missing`: a value, or a `Gap`."""
