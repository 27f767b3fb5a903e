"""Rounding on the safe side: reported bounds are never below the number computed."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def round_up(value: float, digits: int = 6) -> float:
    """Returns the least number of `digits` significant decimal digits that is >= value; infinities and 0 stay.

    Guarantees: result >= value, exactly (decimal arithmetic), and result <= value * (1 + 10 ** (1 - digits)).
    """
    return _rounded(value, digits, ROUND_CEILING)


def round_up_finite(value: float) -> float | None:
    """Rounds up for documents, which have no infinity: None if the value is not finite."""
    return round_up(value) if math.isfinite(value) else None


def round_down(value: float, digits: int = 6) -> float:
    """Returns the greatest number of `digits` significant decimal digits that is <= value; infinities and 0 stay.

    Guarantees: result <= value, exactly.
    """
    return _rounded(value, digits, ROUND_FLOOR)


def write_number(value: float) -> str:
    """Writes a declared number in full: 3.0 is "3", and 1.0000004e-5 is not "1e-05"."""
    return repr(value).removesuffix(".0")


def _rounded(value: float, digits: int, mode: str) -> float:
    if math.isnan(value):
        raise ValueError("expected a number to round, got NaN")
    if value == 0 or math.isinf(value):
        return value
    if float(f"{value:.{digits - 1}e}") == value:
        return value  # the double nearest to such a decimal may lie slightly beyond it; it's rounded already
    exact = Decimal(value)
    unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    # `value` is a double, so the double nearest to the rounded decimal is not on the other side of it
    return float(exact.quantize(unit, rounding=mode))
