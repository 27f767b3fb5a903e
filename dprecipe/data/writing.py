"""Numbers as people write them: with a decimal comma, with digits in groups of three, with a unit beside them.

A column or a label declares how its numbers are written (`decimal`, `affixes`); without that, a number is written as a
program writes it. No numpy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, final

from pydantic import Field

from dprecipe.faults import Finding
from dprecipe.language.base import Name

Decimal = Literal["comma", "point"]
MAX_AFFIXES, MAX_AFFIX = 10, 20
MAX_LENGTH = 400
"""Characters of a number; longer texts are none, and take no time."""
Affixes = Annotated[
    tuple[Annotated[Name, Field(max_length=MAX_AFFIX)], ...], Field(min_length=1, max_length=MAX_AFFIXES)
]
DECIMAL = "`comma` for 13,5 and 1.234,5; `point` for 1,234.5; digits may be in groups of three"
AFFIXES = "texts that may stand before or after a number, such as %, € or kg"
_SHORT = re.compile(r"[-+]?\d{1,15}(?:,\d{0,15})?")
"""Most numbers, which are parsed in a third of the time."""
SIGNS = "+\\-\u2212"
GROUPS = "'\u2019\\s"
"""Characters between groups of digits, whatever the decimal sign: an apostrophe, a blank of any kind."""


@final
@dataclass(frozen=True, slots=True)
class Writing:
    """The way in which numbers are written. `decimal`: the sign before the fraction; None for a point and no groups.
    `affixes`: texts that may stand before or after a number."""

    decimal: Decimal | None = None
    affixes: tuple[str, ...] = ()

    def parse(self, text: str) -> float | None:
        """Returns the finite number that a normalised text is; None if it is none, or if its groups of digits are not
        of three.
        """
        if _SHORT.fullmatch(text) and (self.decimal == "comma" or "," not in text):
            return float(text.replace(",", "."))
        match = _find_form(self).fullmatch(text) if len(text) <= MAX_LENGTH else None
        if match is None:
            return None
        before, sign, whole, fraction, exponent = match.group("before", "sign", "whole", "fraction", "exponent")
        digits = re.sub(r"\D", "", whole or "")
        if not (digits or fraction) or (before and sign):
            return None
        number = float(f"{digits or '0'}.{fraction or '0'}{exponent or ''}")
        if not math.isfinite(number):
            return None
        return number if (before or sign or "+") == "+" else -number


def find_writing(decimal: Decimal | None, affixes: tuple[str, ...] | None) -> Writing | None:
    """Returns what is declared of the writing of numbers; None if nothing is."""
    return None if decimal is None and affixes is None else Writing(decimal, affixes or ())


def find_wrong_affixes(affixes: tuple[str, ...] | None, path: str) -> Iterator[Finding]:
    """Yields the findings for texts that could be a part of a number."""
    for affix in affixes or ():
        if re.match(rf"[\d{SIGNS}]|[eE]\d+\Z|[{SIGNS}{GROUPS}\d.,]+\Z", affix):
            yield Finding(
                "R203",
                f"{affix!r} could be a part of a number",
                "write the text without digits and signs before it, such as '%', '€' or 'kg'",
                path,
            )


@lru_cache(maxsize=256)
def _find_form(writing: Writing) -> re.Pattern[str]:
    """Returns the pattern of a text that is such a number."""
    point, group = (",", ".") if writing.decimal == "comma" else (r"\.", ",")
    whole = r"\d*"
    if writing.decimal is not None:
        whole = rf"[1-9]\d{{0,2}}(?:(?P<group>[{group}{GROUPS}])\d{{3}})(?:(?P=group)\d{{3}})*|\d*"
    number = rf"(?P<sign>[{SIGNS}])?(?P<whole>{whole})(?:{point}(?P<fraction>\d*))?(?P<exponent>[eE][+-]?\d{{1,3}})?"
    affix = "|".join(map(re.escape, sorted(writing.affixes, key=len, reverse=True))) or r"(?!)"
    return re.compile(rf"(?:(?P<before>[{SIGNS}])?\s*(?:{affix})\s*)?{number}(?:\s*(?:{affix}))?")
