"""The least noise with which so many runs still fit into an account: "twenty runs like this", "a tenth of what is
left"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.calibrate import MAX_NOISE, MIN_NOISE, CalibrationError
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Cap, Spent
from dprecipe.privacy.filters.cost import cost_of
from dprecipe.privacy.filters.filter import admits, mixture_epsilon, room
from dprecipe.privacy.rounding import round_up

_CLOSE = 2e-6
"""Relative: how far above the least noise a result may be, before it is rounded up to six digits."""
_STEPS = 60
_FAR = 3.0
"""The largest step of a secant, in log σ."""


def solve_noise(
    make: Callable[[float], Sequence[Charge]], runs: float, spent: Spent, cap: Cap, neighbouring: Neighbouring
) -> float:
    """Least noise multiplier, of six digits, with which `runs` runs like `make(σ)` fit beside what is spent. A share
    of what is left is 1/share runs. The cost of `make(σ)` must fall as σ grows.

    Guarantees: `admits(spent + cost.times(runs), cap)`, cost that of `make(result)`.

    Raises:
        CalibrationError: even the most noise is too little, or the least noise is enough.
        NotInAccount: the charges have no cost under this relation.
        ValueError: `runs` not above 0, or not finite.
    """
    if not 0 < runs < math.inf:
        raise ValueError(f"expected a finite number of runs > 0, got {runs}")

    def cost(sigma: float) -> Spent:
        return cost_of(make(sigma), neighbouring, cap.orders)

    def slack(log_sigma: float) -> float:
        """log of how many times too few, negative, or too many runs fit."""
        fit = room(spent, cost(math.exp(log_sigma)), cap)
        return math.log(min(max(fit / runs, 1e-12), 1e12))

    inside = outside = math.nan
    at, value = 0.0, slack(0.0)
    known: dict[float, float] = {}
    for _ in range(_STEPS):
        known[at] = value
        if value >= 0:
            inside = at
        else:
            outside = at
        if inside - outside < _CLOSE:
            break
        at = _next(known, inside, outside)
        if not math.log(MIN_NOISE) <= at <= math.log(MAX_NOISE):
            sigma = math.exp(_edge(known))
            reason = "too_tight" if math.isnan(inside) else "never_reached"
            raise CalibrationError(reason, sigma, mixture_epsilon(spent + cost(sigma).times(runs), cap), cap.epsilon)
        value = slack(at)
    result = round_up(math.exp(inside))
    while not admits(spent + cost(result).times(runs), cap):
        result = round_up(result * (1 + 1e-6))
    return result


def _edge(known: dict[float, float]) -> float:
    """Of the values of log σ that were tried, the one furthest from 1."""
    return max(known, key=abs)


def _next(known: dict[float, float], inside: float, outside: float) -> float:
    """By the slope of the two nearest values, within the bracket; twice the noise adds about log 4."""
    if math.isnan(inside) or math.isnan(outside):
        at = max(known) if math.isnan(inside) else min(known)
        step = min(max(abs(known[at]) / 2, 0.1), _FAR)
        return at + 1.05 * step if math.isnan(inside) else at - 1.05 * step
    low, high = known[outside], known[inside]
    width = inside - outside
    guess = outside + width * -low / (high - low)
    margin = min(0.5 * _CLOSE, 0.25 * width)
    if len(known) % 3 == 0 and width > 1e-3:
        return outside + width / 2
    return min(max(guess + margin, outside + margin), inside - margin)
