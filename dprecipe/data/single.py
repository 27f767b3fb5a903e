"""Numbers as features hold them: in single precision. No numpy: recipes are checked by it."""

from __future__ import annotations

import math
import struct

LARGEST = 1e30
"""The largest constant: products and quotients of features with it stay finite in single precision."""


def round_to_single(number: float) -> float:
    """Returns the nearest number of single precision; infinite beyond its range."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded


def has_width(low: float, high: float) -> bool:
    """Returns True if an interval has a width in single precision, large enough to divide by a hundredth of it."""
    low, high = round_to_single(low), round_to_single(high)
    return low < high and 1 / LARGEST < high / 2 - low / 2 < LARGEST
