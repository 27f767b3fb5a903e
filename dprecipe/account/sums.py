"""Running sums of what runs count, from which a cost can be taken back, also at orders where it is infinite.

A cost is a multiple of a grain (`dprecipe.privacy.filters.cap`), so it is kept as a whole number of grains, and
infinite costs are counted. The order in which costs come and go does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dprecipe.account.canonical import Fields
from dprecipe.privacy.filters.cap import DEAD, DELTA_GRAIN, GRAIN, Spent

MAX_EXACT_DELTA = 2.0**-7
"""A larger sum of δ' counts as 1, as in `Spent`."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of costs at the account's orders, in grains. `infinite`: the number of infinite costs at each order."""

    rdp: tuple[int, ...]
    infinite: tuple[int, ...]
    delta: int

    @classmethod
    def zero(cls, orders: int) -> Sums:
        return cls((0,) * orders, (0,) * orders, 0)

    @classmethod
    def of(cls, spent: Spent) -> Sums:
        finite = (0.0 if math.isinf(value) else value for value in spent.rdp)
        dead = (int(math.isinf(value)) for value in spent.rdp)
        return cls(tuple(int(value / GRAIN) for value in finite), tuple(dead), int(spent.delta / DELTA_GRAIN))

    @property
    def is_nothing(self) -> bool:
        return not (any(self.rdp) or any(self.infinite) or self.delta)

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            tuple(map(int.__add__, self.rdp, other.rdp)),
            tuple(map(int.__add__, self.infinite, other.infinite)),
            self.delta + other.delta,
        )

    def __sub__(self, other: Sums) -> Sums:
        return Sums(
            tuple(map(int.__sub__, self.rdp, other.rdp)),
            tuple(map(int.__sub__, self.infinite, other.infinite)),
            self.delta - other.delta,
        )

    def to_spent(self) -> Spent:
        """Returns the sum as `Spent`: infinite at an order where any cost is infinite, or where the sum is too
        large."""
        rdp = (
            math.inf if dead or grains * GRAIN >= DEAD else grains * GRAIN
            for grains, dead in zip(self.rdp, self.infinite, strict=True)
        )
        delta = self.delta * DELTA_GRAIN
        return Spent(tuple(rdp), delta if delta < MAX_EXACT_DELTA else 1.0)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values, whole numbers as text: they may be larger than other programs can read."""
        return {"rdp": [*map(str, self.rdp)], "infinite": [*map(str, self.infinite)], "delta": str(self.delta)}


def read_sums(content: Mapping[str, Any]) -> Sums:
    """Reads what `Sums.to_json` wrote. Raises `ValueError`."""
    fields = Fields(content)
    rdp, infinite = (tuple(map(_read_whole, fields.items(name))) for name in ("rdp", "infinite"))
    delta = _read_whole(fields.text("delta", ".*"))
    fields.end()
    return Sums(rdp, infinite, delta)


def _read_whole(value: object) -> int:
    if not isinstance(value, str) or not value.isdecimal() or not value.isascii() or len(value) > 60:
        raise ValueError("a sum is not a whole number of at least 0")
    return int(value)
