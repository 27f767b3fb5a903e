"""What publishing a data-dependent ε is expected to bring on simulated votes, and the constants that bring most.

The sum that would be published, and its smooth sensitivity, are those of a run (`privacy.vote_sensitivity`); of their
noise the mean is taken. Where teachers are many, the sensitivity is looked up at every so many counts only: it comes
out within about 1 % of a run's, in a thousandth of the time.

Axes: Q queries, S and T the two largest counts, D distances, B betas, L multipliers of the noise of the sensitivity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dprecipe.mechanisms.pate.theory import sanitise, vote_analysis, vote_sensitivity
from dprecipe.mechanisms.pate.theory.sanitise import Sanitised, Sanitiser
from dprecipe.mechanisms.pate.theory.votes import Voting
from dprecipe.privacy.divergence import Array

SIGNIFICANT = 2
"""Digits of what is suggested."""
MIN_ORDER, MAX_ORDER = 1.5, 1024.0

_ROWS = 500
"""Of a table, at least; twice as many at most."""
_BETAS = np.linspace(0.05, 0.9, 35)
"""β over the largest that has a finite cost."""
_SCALES = np.geomspace(1.0, 300.0, 80)
"""Multipliers of the noise of the sensitivity's logarithm."""


@dataclass(frozen=True, slots=True)
class PublishedCost:
    """What a release with these constants is expected to say, over its noise: ε at δ + 2δ'.

    `deviation` is the standard deviation of ε by the noise of the value; `total` F, the sum before noise; `cost` what
    the release itself spends, both in Rényi terms at the constants' order.
    """

    constants: Sanitiser
    epsilon: float
    delta: float
    deviation: float
    total: float
    cost: float


@dataclass(frozen=True, slots=True)
class SimulatedSums:
    """At one order: a query's mean cost, and how much one teacher can change the mean at distances 0, step, …: (D,)."""

    order: float
    cost: float
    sensitivities: Array
    step: int

    def published(self, constants: Sanitiser, voting: Voting, queries: int, delta: float) -> PublishedCost:
        """The release for a list of `queries` queries, clipped at what any votes would cost."""
        log_smooth = vote_sensitivity.log_smooth(queries * self.sensitivities, constants.smoothness * self.step)
        spread = constants.smoothness * constants.sensitivity_multiplier
        mean = Sanitised(queries * self.cost, log_smooth + spread * constants.quantile + spread**2 / 2)
        worst_case = float(vote_analysis.independent_rdp(voting, queries, queries, [constants.order])[0])
        result = sanitise.upper_bound(mean, constants, delta, worst_case)
        return PublishedCost(
            constants=constants,
            epsilon=result.epsilon,
            delta=result.delta,
            deviation=constants.value_multiplier * math.exp(log_smooth),
            total=mean.value,
            cost=float(constants.cost([constants.order])[0]),
        )


def simulate_sums(counts_QM: NDArray[np.int64], voting: Voting, order: float) -> SimulatedSums:
    """What a run would sum up, divided by the queries."""
    step = max(1, voting.teachers // _ROWS)
    first_Q, second_Q = vote_sensitivity.two_largest(counts_QM)
    cost = float(vote_sensitivity.query_cost(first_Q, second_Q, voting, order).mean())
    distances_D = vote_sensitivity.at_distances(
        local_sensitivity(voting, order, step), first_Q // step, second_Q // step
    )
    return SimulatedSums(order, cost, distances_D / len(counts_QM), step)


def suggest_constants(
    counts_QM: NDArray[np.int64],
    voting: Voting,
    queries: int,
    delta: float,
    failure: float,
    start: float,
    report: Callable[[str], None],
) -> Sanitiser:
    """Constants whose expected ε is the smallest found: all but the order by a grid and a formula, the order downhill
    from `start` in steps of 2 and then of √2. `failure` δ' is given. `report` is told what is being looked at."""

    @cache
    def at(order: float) -> tuple[float, Sanitiser]:
        report(f"sanitising at order {order:.3g}")
        return _choose_best(simulate_sums(counts_QM, voting, order), voting, queries, delta, failure)

    best, result = at(_round_constant(min(max(start, MIN_ORDER), MAX_ORDER)))
    for factor, more in itertools.product((2.0, math.sqrt(2)), (False, True)):
        while MIN_ORDER <= (order := _round_constant(result.order * (factor if more else 1 / factor))) <= MAX_ORDER:
            value, constants = at(order)
            if not value < best:
                break
            best, result = value, constants
    return result


def _choose_best(
    sums: SimulatedSums, voting: Voting, queries: int, delta: float, failure: float
) -> tuple[float, Sanitiser]:
    """The best constants at one order, and ε with them, not clipped.

    With w the mean of z exp(μ~), the multiplier s of the value's noise that makes s w + α/(2 s² v) least is
    (α/(v w))^(1/3).
    """
    order, z = sums.order, -float(special.ndtri(failure))
    beta_B1 = (-math.log1p(-1 / order) / 2 * _BETAS)[:, None]
    v_B1 = 1 - (order - 1) * np.expm1(2 * beta_B1)
    sums_D = queries * sums.sensitivities
    logs_B1 = np.array([[vote_sensitivity.log_smooth(sums_D, beta * sums.step)] for beta in beta_B1[:, 0]])
    spread_BL = beta_B1 * _SCALES
    width_BL = z * np.exp(np.minimum(logs_B1 + spread_BL * z + spread_BL**2 / 2, 600.0))
    multiplier_BL = np.cbrt(order / (v_B1 * width_BL))
    gnss_BL = order / (2 * multiplier_BL**2 * v_B1) - beta_B1 - np.log(v_B1) / (2 * (order - 1))
    renyi_BL = width_BL * multiplier_BL + gnss_BL + order / (2 * _SCALES**2)
    b, scale = np.unravel_index(int(np.argmin(renyi_BL)), renyi_BL.shape)
    beta, multiplier, scale_multiplier = beta_B1[b, 0], multiplier_BL[b, scale], _SCALES[scale]
    constants = Sanitiser(
        order, _round_constant(beta), _round_constant(multiplier), _round_constant(scale_multiplier), failure
    )
    renyi = queries * sums.cost + float(renyi_BL[b, scale])
    return renyi + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1), constants


def local_sensitivity(voting: Voting, order: float, step: int) -> Array:
    """As `vote_sensitivity.local_sensitivities` of the table of costs, at every `step`-th count of either axis: (S,
    T)."""
    first_ST, second_ST = np.meshgrid(
        np.arange(0, voting.teachers + 1, step), np.arange(0, voting.teachers // 2 + 1, step), indexing="ij"
    )
    possible_ST = _costs(first_ST, second_ST, voting, order)
    largest_ST = np.zeros(possible_ST.shape)
    for first, second in itertools.product((-1, 0, 1), repeat=2):
        changes_ST = np.abs(_costs(first_ST + first, second_ST + second, voting, order) - possible_ST)
        largest_ST = np.fmax(largest_ST, changes_ST)
    return largest_ST


def _costs(first_ST: NDArray[np.int64], second_ST: NDArray[np.int64], voting: Voting, order: float) -> Array:
    """f of pairs of counts, NaN where no histogram has them."""
    costs_ST = np.full(first_ST.shape, np.nan)
    possible_ST = vote_sensitivity.is_possible(first_ST, second_ST, voting) & (second_ST >= 0)
    costs_ST[possible_ST] = vote_sensitivity.query_cost(first_ST[possible_ST], second_ST[possible_ST], voting, order)
    return costs_ST


def _round_constant(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT}g}")
