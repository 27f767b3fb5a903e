"""The cap of an account and what was spent of it, at Rényi orders that are fixed with the cap.

Notation: α order, w weight of an order, R(α) the sum of the costs of all runs at α, δ' the probability of an event in
which a cost does not hold.

Sums are exact. A cost is rounded up to a multiple of `GRAIN`, and sums of such numbers fit a double, so that they do
not depend on the order in which they are added, and a reservation that is given back leaves no trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

MAX_EPSILON = 100.0
MAX_DELTA = 0.1
GRAIN = 2.0**-40
"""The unit of costs: what is spent at an order is a multiple of it."""
DELTA_GRAIN = 2.0**-60
DEAD = 2.0**12
"""The sum from which on an order says nothing more and counts as infinite. Sums below it are exact."""
CERTAIN = 2.0**-7
"""The sum of δ' from which on it counts as 1."""
MAX_ORDER = 65536.0

_STEP = 1.5
_NEAR = range(-3, 4)
_FAR = (8, 64)
_PARTS = (*(Fraction(1, 3 ** abs(j)) for j in _NEAR), *(Fraction(1, 81) for _ in _FAR))
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Cap:
    """The largest (ε, δ) of everything that is ever released under an account; never raised.

    A tenth of δ is for events in which a cost does not hold (`delta_prime`), the rest for the conversion of Rényi
    divergences (`delta_rest`).

    Raises:
        ValueError: ε outside (0, `MAX_EPSILON`] or δ outside (0, `MAX_DELTA`].
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= MAX_EPSILON:  # written so that NaN fails
            raise ValueError(f"expected 0 < epsilon <= {MAX_EPSILON:g}, got {self.epsilon}")
        if not 0 < self.delta <= MAX_DELTA:
            raise ValueError(f"expected 0 < delta <= {MAX_DELTA:g}, got {self.delta}")

    @property
    def delta_prime(self) -> float:
        """The largest sum of δ' of all runs."""
        return self.delta / 10

    @property
    def delta_rest(self) -> float:
        """The δ at which Rényi divergences are converted; with `delta_prime` at most δ."""
        return self.delta * (0.9 - 2.0**-50)

    @cached_property
    def orders(self) -> tuple[float, ...]:
        """The nine orders, increasing: around the order at which a cost proportional to the order exhausts the cap, and
        two far ones for mechanisms of bounded loss."""
        return choose_orders(self.epsilon, self.delta_rest)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the orders; their sum is at most 1."""
        return WEIGHTS


WEIGHTS = tuple(float(part / sum(_PARTS)) * (1 - 2.0**-50) for part in _PARTS)


def choose_orders(epsilon: float, delta: float) -> tuple[float, ...]:
    """Returns the orders of a cap: 1 + (α* - 1) times 1.5^-3, …, 1.5^3, 8 and 64, to six significant digits; the two
    far ones are whole. Any fixed orders give a bound: these give a small one.
    """
    best = find_best_order(epsilon, delta) - 1
    near = [float(f"{1 + best * _STEP**j:.5e}") for j in _NEAR]
    far = [float(math.ceil(1 + best * times)) for times in _FAR]
    return tuple(min(order, MAX_ORDER) for order in (*near, *far))


def find_best_order(epsilon: float, delta: float) -> float:
    """Returns the α* that maximises (ε - log(1 - 1/α) + (log δ + log α)/(α-1)) / α: there a cost c α may have the
    largest c."""

    def gain(log_below: float) -> float:
        below = math.exp(log_below)
        order = 1 + below
        return (epsilon - math.log(below / order) + (math.log(delta) + math.log(order)) / below) / order

    start = max((k / 8 for k in range(-56, 120)), key=gain)
    low, high = start - 1 / 8, start + 1 / 8
    while high - low > 1e-9:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if gain(left) < gain(right):
            low = left
        else:
            high = right
    return 1 + math.exp((low + high) / 2)


@dataclass(frozen=True, slots=True)
class Spent:
    """A cost or a sum of costs: R(α) at each order of a cap (infinite: this order says nothing more), and the δ'.

    Raises:
        ValueError: a number that is negative or no multiple of its grain. `round_up_cost` makes such numbers.
    """

    rdp: tuple[float, ...]
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not all(value >= 0 and value == _dead_or(value) for value in self.rdp):
            raise ValueError(f"expected multiples of {GRAIN!r} from 0 to {DEAD:g}, or infinity, got {self.rdp}")
        if not (self.delta >= 0 and self.delta == _certain_or(self.delta)):
            raise ValueError(f"expected a multiple of {DELTA_GRAIN!r} from 0 to {CERTAIN}, or 1, got {self.delta}")

    def __add__(self, other: Spent) -> Spent:
        """Returns the exact sum; infinite at an order from `DEAD` on, and with δ' of 1 from `CERTAIN` on."""
        if len(self.rdp) != len(other.rdp):
            raise ValueError(f"expected costs at the same orders, got {len(self.rdp)} and {len(other.rdp)} of them")
        sums = tuple(_dead_or(a + b) for a, b in zip(self.rdp, other.rdp, strict=True))
        return Spent(sums, _certain_or(self.delta + other.delta))

    def times(self, count: float) -> Spent:
        """Returns `count` >= 0 of these costs, rounded up if `count` isn't whole.

        Raises:
            ValueError: `count` negative, infinite or NaN.
        """
        if not 0 <= count < math.inf:
            raise ValueError(f"expected a finite count >= 0, got {count}")
        return Spent(tuple(_up(count, value) for value in self.rdp), _up_delta(count, self.delta))

    def covers(self, other: Spent) -> bool:
        """Returns True if this is at least `other` at every order, up to the rounding of another computer's functions
        (1e-9)."""
        return (
            len(self.rdp) == len(other.rdp)
            and all(b <= a * (1 + 1e-9) + 4 * GRAIN for a, b in zip(self.rdp, other.rdp, strict=True))
            and other.delta <= self.delta * (1 + 1e-9) + 4 * DELTA_GRAIN
        )

    @property
    def is_nothing(self) -> bool:
        return not self.delta and not any(self.rdp)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values; infinity is null."""
        return {"delta": self.delta, "rdp": [None if math.isinf(value) else value for value in self.rdp]}


def spent_from_json(data: Mapping[str, Any], orders: int) -> Spent:
    """Reads what `Spent.to_json` wrote, at `orders` orders. The input is untrusted.

    Raises:
        ValueError: it is anything else.
    """
    if not isinstance(data, Mapping) or set(data) != {"delta", "rdp"} or not isinstance(data["rdp"], list):
        raise ValueError("expected the fields delta and rdp of what was spent")
    values = [math.inf if value is None else value for value in data["rdp"]]
    if len(values) != orders:
        raise ValueError(f"expected what was spent at {orders} orders, got {len(values)}")
    numbers = [*values, data["delta"]]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers):
        raise ValueError("expected numbers of what was spent")
    if not all(abs(value) <= DEAD or value == math.inf for value in numbers):
        raise ValueError("expected numbers in range of what was spent")
    return Spent(tuple(map(float, values)), float(data["delta"]))


def round_up_cost(rdp: Sequence[float], delta: float) -> Spent:
    """Returns a cost: each number rounded up to a multiple of its grain, NaN taken as infinite.

    Raises:
        ValueError: a negative number.
    """
    if any(value < 0 for value in rdp) or not delta >= 0:
        raise ValueError(f"expected costs >= 0, got {list(rdp)} and {delta}")
    return Spent(tuple(_up(1, value) for value in rdp), _up_delta(1, delta))


def _up(count: float, value: float) -> float:
    """Returns `count` times `value`, rounded up to a multiple of `GRAIN`; infinite from `DEAD` on."""
    if math.isnan(value) or (math.isinf(value) and count):
        return math.inf
    if not count or not value:
        return 0.0
    grains = _count_grains(count, value, GRAIN)
    return math.inf if grains >= DEAD / GRAIN else _dead_or(grains * GRAIN)


def _up_delta(count: float, value: float) -> float:
    """Returns `count` times `value` of δ', rounded up; 1 from `CERTAIN` on."""
    grains = _count_grains(count, value, DELTA_GRAIN)
    return 1.0 if grains >= CERTAIN / DELTA_GRAIN else _certain_or(grains * DELTA_GRAIN)


def _count_grains(count: float, value: float, grain: float) -> int:
    """Returns the number of grains that cover `count` times `value`, computed exactly in whole numbers."""
    (count_up, count_down), (value_up, value_down) = count.as_integer_ratio(), value.as_integer_ratio()
    (grain_up, grain_down) = grain.as_integer_ratio()
    return -(-count_up * value_up * grain_down // (count_down * value_down * grain_up))


def _dead_or(value: float) -> float:
    """Returns the value, if it is a multiple of `GRAIN` below `DEAD`; else infinity."""
    return value if value < DEAD and (value / GRAIN).is_integer() else math.inf


def _certain_or(delta: float) -> float:
    """Returns the value, if it is a multiple of `DELTA_GRAIN` below `CERTAIN`; else 1."""
    return delta if delta < CERTAIN and (delta / DELTA_GRAIN).is_integer() else 1.0
