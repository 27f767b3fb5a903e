"""The expected data-dependent ε of a release on simulated votes, and the constants that make it smallest.

The sum that would be published and its smooth sensitivity are computed as in a run (`theory.vote_sensitivity`); their
noise has its mean value. With many teachers, the sensitivity is evaluated only at every `step`-th count. It comes out
within about 1 % of a run's, in a thousandth of the time.

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
"""Significant digits of suggested constants."""
MIN_ORDER, MAX_ORDER = 1.5, 1024.0

_ROWS = 500
"""The fewest rows of a table of many teachers; it has at most twice as many."""
_BETAS = np.linspace(0.05, 0.9, 35)
"""Values of β that are tried, over the largest β with a finite cost."""
_SCALES = np.geomspace(1.0, 300.0, 80)
"""Multipliers that are tried for the noise of the sensitivity's logarithm."""


@dataclass(frozen=True, slots=True)
class PublishedCost:
    """The release expected with these constants, on average over its noise: ε at δ + 2δ'.

    `deviation` is the standard deviation of ε that the noise of the value causes. `total` is F, the sum before noise;
    `cost` is what the release itself spends. Both are Rényi costs at the constants' order.
    """

    constants: Sanitiser
    epsilon: float
    delta: float
    deviation: float
    total: float
    cost: float


@dataclass(frozen=True, slots=True)
class SimulatedSums:
    """A query's mean cost at one order, and how much one teacher can change that mean at distances 0, step, …: (D,)."""

    order: float
    cost: float
    sensitivities: Array
    step: int

    def published(self, constants: Sanitiser, voting: Voting, queries: int, delta: float) -> PublishedCost:
        """Forecasts the release for `queries` queries, with its cost clipped to the worst case of any votes."""
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
    """Computes the sums of a run, divided by the number of queries."""
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
    """Finds constants with the smallest expected ε: all but the order by a grid and a formula, the order downhill from
    `start` by factors of 2 and then of √2. `failure` is δ', which is given. `report` gets the name of each task."""

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
    """Finds the best constants at one order, and ε with them, not clipped.

    With w the mean of z exp(μ~), the multiplier s of the value's noise that minimises s w + α/(2 s² v) is
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
    """Does as `vote_sensitivity.local_sensitivities` of the table of costs, at every `step`-th count of both axes.

    The result is (S, T).
    """
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
    """Computes f for pairs of counts; NaN where no histogram has them."""
    costs_ST = np.full(first_ST.shape, np.nan)
    possible_ST = vote_sensitivity.is_possible(first_ST, second_ST, voting) & (second_ST >= 0)
    costs_ST[possible_ST] = vote_sensitivity.query_cost(first_ST[possible_ST], second_ST[possible_ST], voting, order)
    return costs_ST


def _round_constant(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT}g}")
