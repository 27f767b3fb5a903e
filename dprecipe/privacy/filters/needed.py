"""The cap that a number of equal runs needs under a filter."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import MAX_EPSILON, Cap
from dprecipe.privacy.filters.cost import cost_of
from dprecipe.privacy.filters.filter import admits, mixture_epsilon
from dprecipe.privacy.rounding import round_up

_NEAR = 1e-5
_LEAST = 1e-3
_TRIES = 60


def find_filter_cap(charges: Sequence[Charge], runs: int, delta: float, neighbouring: Neighbouring) -> float:
    """Returns nearly the least ε of a cap at δ under which `runs` runs of these charges fit, each chosen in view of
    those before; infinite above `MAX_EPSILON`.

    Guarantees: `admits` holds for them at the result.

    A cap fixes its orders, and they decide what it admits. After each cap, the next one to try is the ε that its filter
    gives for the runs: a fixed point of this is a cap that just admits them.

    Raises:
        NotInAccount: an event without a cost.
        ValueError: a δ that no cap can have.
    """
    epsilon, best = 1.0, math.inf
    for _ in range(_TRIES):
        cap = Cap(round_up(min(max(epsilon, _LEAST), MAX_EPSILON), 5), delta)
        if cap.epsilon == best:
            break
        spent = cost_of(charges, neighbouring, cap.orders).times(runs)
        needed = mixture_epsilon(spent, cap)
        if admits(spent, cap):
            best = min(best, cap.epsilon)
            if needed >= cap.epsilon * (1 - 10 * _NEAR):
                break
        epsilon = needed * (1 + _NEAR)
    return best
