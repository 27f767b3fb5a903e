"""The filter, for what may still be spent of a cap, and the odometer, for what was spent so far.

Fix an ordered pair of neighbours, P and Q the distributions of everything released under the first and the second, L
the sum of the privacy losses of all runs. Each run's cost ρ(α) bounds its Rényi divergences given everything before it,
in both orders of the pair; which run comes next is chosen in view of all that. With weights w of the orders that are
fixed beforehand and sum to at most 1,

    Z = Σ w exp((α-1) (L - R(α))),

is a supermartingale under P that starts at no more than 1: given the past, E exp((α-1) l) = exp((α-1) D_α) <=
exp((α-1) ρ(α)) for each order. Everything here follows from E Z <= 1, at every stopping time.

**Filter.** δ(ε; R) = max over x > 0 of (1 - e^-x) / Σ w exp((α-1) (x + ε - R(α))). At the end, with x = L - ε > 0,
1 - e^-x <= δ(ε; R) Z, hence E_P (1 - e^(ε-L))_+ <= δ(ε; R) E Z. If no run is admitted after which δ(ε; R) would be more
than δ, everything together is (ε, δ)-DP, whatever was decided on the way. The refusals are functions of what was
released: they cost nothing. Costs that fail with a chance δ' (`Spent.delta`): Z counts where none failed, and the
chance that any does, at most their sum, is added to δ.

**Odometer.** Ville: with chance 1 - δ, Z is below 1/δ at every moment, and L below the root ε of Σ w exp((α-1) (ε -
R(α))) = 1/δ: ex post, even for a run that stops because of what was seen. It is no (ε, δ)-DP claim, since ε is random.

**Weights are needed.** Admitting what *any* order admits by itself, or converting R at the best order of the moment, is
no bound: about twice the claimed δ is attained (tests/privacy/filters/test_games.py).

Source: Lécuyer 2021 and Feldman & Zrnic 2021 (one order, fixed beforehand); Canonne, Kamath & Steinke 2020 (the
conversion); Whitehouse et al. 2023 (mixtures); docs/how-to/account.md has the proofs for curves.

Uses the standard library alone, so that an account is shown without loading numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dprecipe.privacy.filters.cap import Cap, Spent

_NEAR = 1e-10
"""The largest relative error of a search."""
_LARGEST = 1e6
_TINY = 1e-300
"""The least δ that is reported: an exponential may underflow to 0."""
_LEAST_PART = 1e-9
_TANGENTS = 60


def mixture_delta(epsilon: float, spent: Spent, cap: Cap) -> float:
    """Returns the δ at which everything spent is (ε, δ)-DP if runs were admitted by `admits`; at most 1. ε of either
    sign.

    Guarantees: at every stopping time, P(S) <= E_Q[e^ε 1_S] + δ, in both orders of each pair of neighbours.
    """
    if spent.is_nothing:
        return max(0.0, -math.expm1(epsilon))
    return min(1.0, max(math.exp(_log_delta(epsilon, spent, cap)[0]), _TINY) + spent.delta)


def mixture_epsilon(spent: Spent, cap: Cap) -> float:
    """Returns ε of everything spent, at the cap's δ: what the filter compares with the cap. Infinite if the δ' add up
    to too much.

    It is not uniform in time: it holds if no run follows. Rounded up.
    """
    if spent.is_nothing:
        return 0.0
    if spent.delta > cap.delta_prime:
        return math.inf
    target = math.log(cap.delta_rest)

    def excess(epsilon: float) -> tuple[float, float]:
        value, slope = _log_delta(epsilon, spent, cap)
        return value - target, slope

    return _least_epsilon(excess)


def admits(spent: Spent, cap: Cap) -> bool:
    """Returns True if all that is spent stays within the cap; `spent` includes every open reservation in full, and the
    run to be admitted.

    Guarantees: if no run starts that this refuses, everything ever released is (ε, δ)-DP, with ε and δ of the cap.
    """
    if spent.is_nothing:
        return True
    limit = math.log(cap.delta_rest)
    return spent.delta <= cap.delta_prime and _log_delta(cap.epsilon, spent, cap, limit)[0] <= limit


def odometer(spent: Spent, cap: Cap) -> float:
    """Returns an ε such that, with probability 1 - δ of the cap, the privacy loss of everything so far is at most ε, at
    this and at all other moments. Rounded up; infinite if no order says anything, or the δ' add up to too much.
    """
    if spent.is_nothing:
        return 0.0
    if spent.delta > cap.delta_prime:
        return math.inf
    target = -math.log(cap.delta_rest)

    def excess(epsilon: float) -> tuple[float, float]:
        exponents = _exponents(epsilon, spent, cap)
        total = _log_sum(exponents)
        return target - total + _rounding(exponents, epsilon), -_mean(exponents, total)

    return _least_epsilon(excess)


def affordable_share(spent: Spent, cost: Spent, cap: Cap) -> float:
    """Returns the largest multiple of a cost that may still be spent, rounded down; infinite if the cost is nothing, 0
    if not even a part of 1e-9 fits.

    The search is right because `admits` is monotone: if a multiple fits, every smaller one fits.
    """
    if cost.is_nothing:
        return math.inf

    def fits(count: float) -> bool:
        return admits(spent + cost.times(count), cap)

    if not fits(_LEAST_PART):
        return 0.0
    low, high = _LEAST_PART, 1.0
    while fits(high):
        low, high = high, 2 * high
    while high - low > _NEAR * high:
        middle = (low + high) / 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def count_runs(spent: Spent, cost: Spent, cap: Cap, at_most: int = 10**6) -> int:
    """Returns the number of whole runs of a cost that may still be spent, up to `at_most`.

    Guarantees: `admits(spent + cost.times(result), cap)` if the result is above 0.
    """
    count = int(min(affordable_share(spent, cost, cap) * (1 + 2 * _NEAR), float(at_most)))
    return count if not count or admits(spent + cost.times(count), cap) else count - 1


Exponents = list[tuple[float, float]]
"""Pairs of α - 1 and log w + (α-1) (ε - R(α)), for the orders where R(α) is finite."""


def _exponents(epsilon: float, spent: Spent, cap: Cap) -> Exponents:
    return [
        (order - 1, math.log(weight) + (order - 1) * (epsilon - value))
        for order, weight, value in zip(cap.orders, cap.weights, spent.rdp, strict=True)
        if value < math.inf
    ]


def _log_sum(exponents: Exponents) -> float:
    if not exponents:
        return -math.inf
    top = max(value for _, value in exponents)
    return top + math.log(math.fsum(math.exp(value - top) for _, value in exponents))


def _mean(exponents: Exponents, log_sum: float) -> float:
    """Returns the mean of α - 1, weighted by the terms of the sum."""
    return math.fsum(below * math.exp(value - log_sum) for below, value in exponents)


def _rounding(exponents: Exponents, epsilon: float) -> float:
    """Returns a bound above the rounding error of the log-sum-exp of the exponents and of its tangents."""
    return 1e-12 + 4e-15 * max((abs(value) + 2 * below * abs(epsilon) for below, value in exponents), default=0.0)


def _log_delta(epsilon: float, spent: Spent, cap: Cap, limit: float | None = None) -> tuple[float, float]:
    """Returns log δ(ε; R), at most 0, without the δ', rounded up; and its approximate slope in ε.

    With a `limit`, the search ends once it is known on which side of it log δ is; the result is on that side.

    f(x) = log(1 - e^-x) - log Σ w exp((α-1) (x + ε - R)) is concave: log(1 - e^-x) is, and a log-sum-exp of lines is
    convex. Its slope 1/(e^x - 1) - (a mean of α-1) is 0 between log(1 + 1/(α-1)) of the largest and of the least order.
    The maximum is below the tangents at both ends of any interval that contains it. In x and ε together f is concave
    too, so its maximum over x is a concave function of ε, with the slope -(a mean of α-1) there.
    """
    alive = [order - 1 for order, value in zip(cap.orders, spent.rdp, strict=True) if value < math.inf]
    if not alive:
        return 0.0, 0.0

    def at(x: float) -> tuple[float, float, float]:
        """Returns f, its slope, and their rounding error."""
        exponents = _exponents(epsilon + x, spent, cap)
        total = _log_sum(exponents)
        slope = 1 / math.expm1(x) - _mean(exponents, total)
        return math.log(-math.expm1(-x)) - total, slope, _rounding(exponents, abs(epsilon) + x)

    low, high = math.log1p(1 / max(alive)), math.log1p(1 / min(alive))
    (left, rise, error), (right, fall, other_error) = at(low), at(high)
    bound = math.inf
    for _ in range(_TANGENTS):
        up, down, gap = max(rise, 0.0), max(-fall, 0.0), high - low
        bound = min(bound, left + up * gap + error, right + down * gap + other_error)
        if not gap or not up or not down:
            break
        meet = (right - left + down * gap) / (up + down)  # where the tangents meet, measured from `low`
        bound = min(bound, left + up * min(max(meet, 0.0), gap) + max(error, other_error))
        if bound - max(left, right) <= 4 * max(error, other_error):
            break
        if limit is not None and (bound <= limit or max(left - error, right - other_error) > limit):
            break
        middle = low + (meet if 0.01 * gap < meet < 0.99 * gap else gap / 2)
        found = at(middle)
        if found[1] > 0:
            low, (left, rise, error) = middle, found
        else:
            high, (right, fall, other_error) = middle, found
    x, slope = (low, rise) if left > right else (high, fall)
    return min(bound, 0.0), slope - 1 / math.expm1(x)


def _least_epsilon(excess: Callable[[float], tuple[float, float]]) -> float:
    """Returns nearly the least ε >= 0 at which `excess` (value, slope) is at most 0. Infinite if there is none.

    Guarantees: `excess` is at most 0 at the result. It falls and is concave, so Newton's steps from above the root
    never pass it, up to rounding.
    """
    if excess(0.0)[0] <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while (found := excess(high))[0] > 0:
        low, high = high, 2 * high
        if high > _LARGEST:
            return math.inf
    close = False
    while high - low > _NEAR * high:
        value, slope = found
        at = low + 0.9 * _NEAR * high if close else high - value / min(slope, -1e-300) - _NEAR / 4 * high
        at = at if low < at < high else (low + high) / 2
        there = excess(at)
        if there[0] > 0:
            low, close = at, not close
        else:
            high, found = at, there
    return high
