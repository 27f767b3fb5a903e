"""The split of a cap: a part for groups of slots, fixed beforehand, and the rest for the filter.

Let L be the loss of the filter's runs, and L_i that of what was taken from group i; each group has its (ε_i, δ_i) from
its reservation on. For all x and y, of any sign, (1 - e^(x + y))_+ <= (1 - e^x)_+ + (1 - e^y)_+. Hence, at the end,

    E_P (1 - e^(ε - L - Σ L_i))_+  <=  E_P (1 - e^(ε_f - L))_+ + Σ E_P (1 - e^(ε_i - L_i))_+  <=  δ_f + Σ δ_i

where ε = ε_f + Σ ε_i. The first term is the filter's theorem (`filter`), the others that of slots (`slots`), given the
past when the group was reserved; both hold with anything released in between. Groups may be chosen in view of what came
before, since the sums of their ε and of their δ never exceed parts that were fixed beforehand. The parts themselves may
not be chosen like that: δ_f would depend on Z.

Parts are decimal numbers, as people write them: 3e-6 and 2e-6 are 5e-6.
"""

from __future__ import annotations

from decimal import Decimal

from dprecipe.privacy.filters.cap import Cap


def subtract_part(epsilon: float, delta: float, slots_epsilon: float, slots_delta: float) -> Cap:
    """Returns the filter's cap, if this much of (ε, δ) is for slots.

    Raises:
        ValueError: nothing is left for it.
    """
    return Cap(subtract_decimals(epsilon, slots_epsilon), subtract_decimals(delta, slots_delta))


def add_decimals(first: float, second: float) -> float:
    """Returns the sum of two decimal numbers."""
    return float(Decimal(repr(first)) + Decimal(repr(second)))


def subtract_decimals(first: float, second: float) -> float:
    """Returns the difference of two decimal numbers."""
    return float(Decimal(repr(first)) - Decimal(repr(second)))
