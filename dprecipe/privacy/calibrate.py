"""Calibration: the least noise, or the largest number of steps, that stays within a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from dprecipe.privacy import rounding
from dprecipe.privacy.accountants import epsilon_answer
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Event

MIN_NOISE, MAX_NOISE = 1e-4, 1e7
MAX_EVENTS = 10**9

_AIM = 1 - 5e-5
_CLOSE = 1 - 1e-4
_EVALUATIONS = 80
_SECANTS = 8
_FAR = 0.7
"""The largest step of a secant, in log σ."""


class CalibrationError(ValueError):
    """The error that no value of the free variable meets the budget, or that every value does.

    `reason` is "too_tight" (at `tried`, the most private value, the cost is still `epsilon`, above the
    budget) or "never_reached" (at `tried`, the least private value, the cost `epsilon` is still within the
    budget).
    """

    def __init__(self, reason: str, tried: float, epsilon: float, budget: float) -> None:
        self.reason, self.tried, self.epsilon, self.budget = reason, tried, epsilon, budget
        comparison = "above" if reason == "too_tight" else "within"
        super().__init__(f"epsilon is {epsilon:.6g} at {tried:.6g}, still {comparison} the budget {budget:.6g}")


def noise_multiplier(
    make: Callable[[float], Sequence[Charge]],
    epsilon: float,
    delta: float,
    neighbouring: Neighbouring,
    accountant: str,
) -> float:
    """Returns the least noise multiplier σ, of six significant digits, such that `make(σ)` costs at most ε at δ.

    `make` turns σ into the charges of the whole run; its cost must fall as σ grows.

    Guarantees: the cost of `make(result)`, rounded up to six digits, is at most ε, by `accountant` itself;
    and at least 99.9 % of ε, unless six digits of σ can't express it, or the accountant's grid is coarse (at rates of
    1e-7 or less). The same inputs give the same σ.

    Raises:
        CalibrationError: even σ = 1e7 costs more than ε, or even σ = 1e-4 costs no more than ε.
        ValueError: ε or δ out of range, unknown accountant.
    """
    _check_budget(epsilon)

    known: dict[float, float] = {}

    def cost(sigma: float) -> float:
        known[sigma] = _cost(make(sigma), delta, neighbouring, accountant)
        return known[sigma]

    def cheap(sigma: float) -> float:
        return _cost(_stand_ins(make(sigma)), delta, neighbouring, "rdp")

    def solve(by: Callable[[float], float], start: float, budget: float, enough: float) -> float:
        inside, outside = _bracket(by, start, budget)
        return refine_noise(by, inside, outside, budget, rounding.round_up, enough)

    start = 1.0
    if accountant == "pld" or _stand_ins(charges := make(start)) != list(charges):
        # The cheap ε is larger or smaller by a nearly constant factor: solve with it, correct the factor, repeat.
        ratio, apart = 0.915 if accountant == "pld" else 1.0, math.inf
        for _ in range(4):
            try:
                start = solve(cheap, start, _AIM * epsilon / ratio, 1 - 1e-5)
            except CalibrationError:
                break
            value = cost(start)
            if _CLOSE * epsilon <= value <= epsilon:
                return start
            if not 0 < value < math.inf or abs(math.log(value / epsilon)) > apart / 2:
                break  # the factor is not nearly constant
            apart = abs(math.log(value / epsilon))
            ratio = value / cheap(start)
        for _ in range(_SECANTS):
            guess = _secant(known, _AIM * epsilon)
            if guess is None or not 0 < (value := cost(guess)) < math.inf:
                break
            start = guess
            if _CLOSE * epsilon <= value <= epsilon:
                return start
    return solve(cost, start, epsilon, _CLOSE)


def _secant(known: Mapping[float, float], aim: float) -> float | None:
    """Returns the σ where the line through the two known points nearest to a cost meets that cost, on log-log axes;
    None if there are fewer than two points, or the line gives nothing new. `known`: costs by σ."""
    near = sorted((abs(math.log(value / aim)), sigma) for sigma, value in known.items() if 0 < value < math.inf)
    if len(near) < 2:
        return None
    (_, first), (_, second) = near[:2]
    rise = math.log(known[second] / known[first])
    slope = math.log(second / first) / rise if rise else 0.0
    if not slope < 0:
        return None
    guess = rounding.round_up(first * math.exp(min(max(slope * math.log(aim / known[first]), -_FAR), _FAR)))
    return guess if MIN_NOISE <= guess <= MAX_NOISE and guess not in known else None


def calibrate_count(
    event: Event,
    epsilon: float,
    delta: float,
    neighbouring: Neighbouring,
    accountant: str,
    spent: Sequence[Charge] = (),
) -> int:
    """Returns the largest number of further events that, composed with `spent`, cost at most ε at δ; 0 if not even one
    fits.

    Guarantees: the cost of `spent` and the result, rounded up to six digits, is at most ε unless the result
    is 0; one event more (2e-5 of the result more, above 50,000) would cost more than ε by `accountant`.

    Raises:
        CalibrationError: even 10⁹ events stay within ε.
        ValueError: ε or δ out of range, unknown accountant.
    """
    _check_budget(epsilon)

    def cost(n: float, by: str) -> float:
        return _cost([*spent, Charge(event, int(n))], delta, neighbouring, by)

    if cost(1, accountant) > epsilon:
        return 0

    def solve(by: str, start: int, precision: float) -> int:
        inside, outside, value = (1, cost(1, by)), None, cost(start, by)
        n, factor = start, 2
        while value <= epsilon:
            inside = (n, value)
            if n >= MAX_EVENTS:
                raise CalibrationError("never_reached", n, value, epsilon)
            n = min(n * factor if value > epsilon / 8 else n * 16, MAX_EVENTS)
            value = cost(n, by)
        outside = (n, value)
        result = refine_noise(
            lambda x: cost(x, by), inside, outside, epsilon, lambda x: float(round(x)), 1.0, precision
        )
        return int(result)

    start = 1
    if accountant == "pld" and cost(1, "rdp") <= epsilon:
        start = solve("rdp", 1, 0.01)
    return solve(accountant, start, 2e-5)


def _stand_ins(charges: Sequence[Charge]) -> list[Charge]:
    """Returns the charges with all noise replaced by Gaussian noise of the same Fisher information: fast to account
    for, and about as expensive (exactly so in the limit of many dimensions).
    """
    return [Charge(charge.event.stand_in(), charge.count) for charge in charges]


def _bracket(
    cost: Callable[[float], float], start: float, budget: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Finds, near `start`, a σ within the budget and a smaller σ above it, each with its cost."""
    sigma, value, factor = start, cost(start), 1.05
    if value <= budget:
        while True:
            inside = (sigma, value)
            if sigma <= MIN_NOISE:
                raise CalibrationError("never_reached", sigma, value, budget)
            sigma = rounding.round_up(max(sigma * _leap(value, budget, factor), MIN_NOISE))
            value, factor = cost(sigma), factor * factor
            if value > budget:
                return inside, (sigma, value)
    while True:
        outside = (sigma, value)
        if sigma >= MAX_NOISE:
            raise CalibrationError("too_tight", sigma, value, budget)
        sigma = rounding.round_up(min(sigma / _leap(value, budget, factor), MAX_NOISE))
        value, factor = cost(sigma), factor * factor
        if value <= budget:
            return (sigma, value), outside


def _leap(value: float, budget: float, factor: float) -> float:
    """Returns a factor < 1 for the next σ. Costs fall roughly like 1/σ, so the factor follows the ratio of the costs
    and goes slightly beyond it.
    """
    gap = abs(math.log(value / budget)) if 0 < value < math.inf else 1.0
    return 1 / (factor * math.exp(min(gap, 3.0)))


def refine_noise(
    cost: Callable[[float], float],
    inside: tuple[float, float],
    outside: tuple[float, float],
    budget: float,
    rounded: Callable[[float], float],
    enough: float,
    precision: float = 0.0,
) -> float:
    """Returns the point nearest to `outside` that costs at most the budget; stops at `enough` of the budget. `inside`
    and `outside` are points with their costs, on either side of the budget.

    False position on log-log axes, a bisection whenever two steps in a row did not halve the bracket.
    """
    last_width, stalled = math.inf, 0
    for _ in range(_EVALUATIONS):
        if inside[1] >= enough * budget and enough < 1:
            break
        width = abs(math.log(outside[0] / inside[0]))
        stalled = stalled + 1 if width > last_width / 2 else 0
        last_width = width
        if abs(outside[0] - inside[0]) <= precision * inside[0]:
            break
        share = 0.5
        if stalled < 2 and inside[1] > 0 and outside[1] < math.inf:
            rise = math.log(outside[1] / inside[1])
            share = min(max(math.log(_AIM * budget / inside[1]) / rise, 1e-3), 1 - 1e-3) if rise > 0 else 0.5
        else:
            stalled = 0
        middle = rounded(inside[0] * (outside[0] / inside[0]) ** share)
        if not min(inside[0], outside[0]) < middle < max(inside[0], outside[0]):
            middle = rounded(math.sqrt(inside[0] * outside[0]))
            if not min(inside[0], outside[0]) < middle < max(inside[0], outside[0]):
                break
        value = cost(middle)
        if value <= budget:
            inside = (middle, value)
        else:
            outside = (middle, value)
    return inside[0]


def _cost(charges: Sequence[Charge], delta: float, neighbouring: Neighbouring, accountant: str) -> float:
    return rounding.round_up(epsilon_answer(charges, delta, neighbouring, accountant).value)


def _check_budget(epsilon: float) -> None:
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"expected a finite epsilon > 0, got {epsilon}")
