"""Group privacy: replacing a unit is removing one and adding another.

With P the data set before, Q without the unit and R after, H_ε(P‖R) <= H_s(P‖Q) + exp(s) H_{ε-s}(Q‖R) for every s,
where H_ε is δ at ε. Two equal steps ask for one curve alone; the best s asks for that of either direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from dprecipe.privacy import pld
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.profile import Answer
from dprecipe.privacy.workload import summarise_charges

Curve = Callable[[float], float]
"""A bound of δ at each ε >= 0, in one direction."""
Directions = tuple[Curve, Curve]
"""The curves of removing a unit, and of adding the same one."""

_LARGEST_HALF = 300.0
"""Half of the largest ε that is searched."""
_PARTS, _ROUNDS, _GOLDEN = 32, 20, (math.sqrt(5) - 1) / 2
"""Parts of the range of splits that are tried, and golden sections of the best."""
_FARTHEST = 5.0
"""The farthest that a split goes below 0 or above ε."""
_REFINED, _LESS = 4, 10.0
"""The most times that grids are made, and the factor between two δ from which on they are made again."""
_CLOSE = 1e-6
"""The share of ε up to which it is searched."""


def epsilon_of_two(epsilon_at: Callable[[float], Answer], delta: float) -> Answer:
    """Returns 2 ε for nearly the smallest ε with (1 + exp(ε)) δ(ε) <= δ; `epsilon_at`: ε of one of both steps at a δ.

    With g(x) = ε at δ/(1 + exp(x)), every x with g(x) <= x is a bound; the secant method finds the fixed point. g is
    computed on grids, so x may end slightly above it; the tolerance grows with each iteration.

    Source: Dwork & Roth 2014, Theorem 2.2 with the δ of two steps, δ(ε) + exp(ε) δ(ε).
    """
    last, x = (-1.0, 0.0), 0.0
    for attempt in range(30):
        slack = 1e-5 * 1.5**attempt
        result = epsilon_at(delta / (1 + math.exp(x)))
        if result.value <= x <= result.value * (1 + slack):
            return Answer(2 * result.value, result.accountant, result.at_edge)
        slope = (result.value - last[1]) / (x - last[0]) if x > 0 else 0.0
        slope, last = min(max(slope, 0.0), 0.9), (x, result.value)
        x = (result.value - slope * x) / (1 - slope) * (1 + slack / 3)
        if not x < _LARGEST_HALF:
            break
    return Answer(math.inf, result.accountant)


def split_delta(one: Directions, other: Directions, epsilon: float) -> float:
    """Returns δ at ε >= 0 of removing `one` unit and adding an `other`, by nearly the best split of ε.

    Guarantees: an upper bound, whatever the split. Below 0 a direction follows from the reverse one of the same unit:
    H_{-ε}(P‖Q) = 1 - exp(-ε) + exp(-ε) H_ε(Q‖P).
    """
    (removed, restored), (dropped, added) = one, other

    def follow(curve: Curve, reverse: Curve, at: float) -> float:
        return curve(at) if at >= 0 else -math.expm1(at) + math.exp(at) * reverse(-at)

    def bound(s: float) -> float:
        return follow(removed, restored, s) + math.exp(s) * follow(added, dropped, epsilon - s)

    even = bound(epsilon / 2)
    beyond = min(_FARTHEST, -math.log1p(-even)) if even < 1 else _FARTHEST  # farther out, 1 - exp(s) alone is more
    width = (epsilon + 2 * beyond) / _PARTS
    best = min((bound(-beyond + width * part), -beyond + width * part) for part in range(_PARTS + 1))
    low, high = best[1] - width, best[1] + width
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = bound(left), bound(right)
    for _ in range(_ROUNDS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = bound(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = bound(right)
    return min(1.0, even, best[0], at_left, at_right)


def split_epsilon(one: Directions, other: Directions, delta: float, most: float) -> float:
    """Returns nearly the least ε at δ by `split_delta`; `most`, a bound already known, if there is no smaller one."""
    from scipy import optimize

    def excess(epsilon: float) -> float:
        return math.log(max(split_delta(one, other, epsilon), 1e-300)) - math.log(delta)

    if not 0 < most < 2 * _LARGEST_HALF or not excess(most) < 0 < excess(0.0):
        return most
    epsilon = float(optimize.brentq(excess, 0.0, most, xtol=_CLOSE * most)) + _CLOSE * most
    return epsilon if epsilon < most and excess(epsilon) <= 0 else most


def refine_epsilon(charges: Sequence[Charge], relation: Neighbouring, delta: float, known: Answer) -> Answer:
    """Returns ε at δ by the best split, from the loss distributions of both directions; `known`, another bound,
    if that is no more or there are none."""
    half = known.value / 2
    if not 0 < half < _LARGEST_HALF:
        return known
    least, at = 0.0, delta / (1 + math.exp(half))
    for one, other in _list_steps(charges, relation, at, half, at):
        least = max(least, split_epsilon(one, other, delta, known.value))
    return Answer(least, "pld") if 0 < least < known.value else known


def refine_deltas(
    charges: Sequence[Charge], relation: Neighbouring, epsilons: Sequence[float], known: Sequence[Answer]
) -> list[Answer]:
    """Returns δ at each ε by the best split; that of `known`, other bounds, where it is no more.

    Grids are made for the δ known so far; where the split gives far less, they are made again.
    """
    answers = list(known)
    for _ in range(_REFINED):
        points = sorted((e, answer.value) for e, answer in zip(epsilons, answers, strict=True) if answer.value > 0)
        middle, at = points[len(points) // 2] if points else (0.0, 0.0)
        if not 0 < middle < 2 * _LARGEST_HALF:
            break
        half, least = middle / 2, points[-1][1]
        steps = list(_list_steps(charges, relation, at / (1 + math.exp(half)), half, least / (1 + math.exp(half))))
        for i, e in enumerate(epsilons):
            if steps and e < 2 * _LARGEST_HALF:
                value = max(split_delta(*step, e) for step in steps)
                answers[i] = Answer(value, "pld") if value < answers[i].value else answers[i]
        if min(answer.value for answer in answers) > least / _LESS:
            break
    return answers


def _list_steps(
    charges: Sequence[Charge], relation: Neighbouring, delta: float, epsilon: float, least: float
) -> Iterator[tuple[Directions, Directions]]:
    """Yields the curves of the unit that is removed and of the one that is added, near ε at δ and down to a δ of
    `least`, for either order of both; a unit that is zeroed out gives way to one that contributes nothing."""
    first = _find_directions(charges, delta, epsilon, least)
    if first is None:
        return
    empty = [Charge(charge.event.of_null_unit(), charge.count) for charge in charges]
    if relation is not Neighbouring.ZERO_OUT_ONE or empty == list(charges):
        yield first, first
    elif (second := _find_directions(empty, delta, epsilon, least)) is not None:
        yield first, second
        yield second, first
    else:
        yield first, first


def _find_directions(charges: Sequence[Charge], delta: float, epsilon: float, least: float) -> Directions | None:
    work = summarise_charges(charges, Neighbouring.ADD_OR_REMOVE_ONE)
    if not work.has_losses or work.whole or work.items:
        return None
    return pld.find_directions(work, delta, epsilon, least)


def deltas_of_two(deltas_at: Callable[[Sequence[float]], list[Answer]], epsilons: Sequence[float]) -> list[Answer]:
    """Returns (1 + exp(ε/2)) δ(ε/2) at each ε; `deltas_at`: δ of one of both steps."""
    halves = [min(e / 2, _LARGEST_HALF) for e in epsilons]
    return [
        Answer(min(1.0, (1 + math.exp(e)) * answer.value), answer.accountant, answer.at_edge)
        for e, answer in zip(halves, deltas_at(halves), strict=True)
    ]
