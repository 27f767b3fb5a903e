"""The tables of a forecast: over thresholds, over the check's noise, and ε over the number of queries.

Axes: Q queries, M classes, A orders.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.commands import simulate, suggest
from dprecipe.mechanisms.pate.commands.alternatives import (
    Alternatives,
    Report,
    count_first_round,
    expect_stop,
    pass_chances,
    sanitiser_of,
    share_right,
)
from dprecipe.mechanisms.pate.commands.forecast_document import (
    ForecastPoint,
    ForecastRelease,
    ForecastRow,
    ForecastThreshold,
)
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.schema import Pate
from dprecipe.mechanisms.pate.theory import votes
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting
from dprecipe.privacy import accountants, conversion
from dprecipe.privacy.divergence import Array
from dprecipe.privacy.events import Charge

THRESHOLDS = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))
"""Thresholds of the table besides the recipe's own, as shares of the teachers."""
DEVIATIONS = (0.25, 0.5, 0.75)
"""Standard deviations of the check's noise besides the recipe's own, as shares of the teachers."""
POINTS = 12


def tabulate_rows(plan: Plan, look: Alternatives, right_Q: Array, report: Report) -> tuple[ForecastRow, ...]:
    """Tabulates thresholds and noises of the check; empty where every query is answered."""
    selection = look.voting.selection
    if selection is None:
        return ()
    rows: list[ForecastRow] = []
    teachers, pluralities = look.voting.teachers, {look.voting.multiplier: right_Q}
    for deviation in sorted({selection.multiplier, *(round(share * teachers, 6) for share in DEVIATIONS)}):
        report(f"thresholds with noise {deviation:g} of the check")
        is_own = deviation == selection.multiplier
        result, worst = look.planned(_with_deviation(look.spec, deviation))
        planned = plan.as_plan_of(PatePlan) if is_own else result
        if is_own:
            worst = plan.guarantee.epsilon
        multiplier = None if planned is None else planned.answer.noise_multiplier
        if multiplier is not None and multiplier not in pluralities:
            voting = replace(look.voting, multiplier=multiplier)
            pluralities[multiplier] = simulate.plurality_chance(look.counts, voting)
        shares = {round(share * teachers, 6) for share in THRESHOLDS}
        for threshold in sorted(shares | {selection.threshold} if is_own else shares):
            pass_Q = pass_chances(look.counts, VoteSelection(threshold, deviation))
            answered, right, stop = float(pass_Q.mean()), None, None
            if planned is not None and multiplier is not None:
                right = share_right(pass_Q, pluralities[multiplier])
                stop = expect_stop(planned, count_first_round(planned), answered)
            chosen = is_own and threshold == selection.threshold
            rows.append(
                ForecastRow(
                    threshold=threshold,
                    selection_multiplier=deviation,
                    chosen=chosen,
                    noise_multiplier=multiplier,
                    answered=answered,
                    right=right,
                    stop=stop,
                    worst_case=worst,
                )
            )
    return tuple(rows)


def _with_deviation(spec: Pate, deviation: float) -> Pate:
    """Returns the recipe with another noise of the check."""
    selection = spec.selection
    if selection is None:
        return spec
    noise = selection.noise.model_copy(update={"multiplier": deviation})
    selection = selection.model_copy(update={"noise": noise})
    return spec.model_copy(update={"aggregator": spec.aggregator.model_copy(update={"selection": selection})})


def tabulate_thresholds(counts_QM: NDArray[np.int64], voting: Voting, right_Q: Array) -> tuple[ForecastThreshold, ...]:
    """Returns what the plot draws; nothing if every query is answered."""
    if voting.selection is None:
        return ()
    results = []
    for threshold in np.linspace(0.3, 1.1, 41) * voting.teachers:
        pass_Q = pass_chances(counts_QM, VoteSelection(float(threshold), voting.selection.multiplier))
        results.append(
            ForecastThreshold(
                threshold=float(threshold), answered=float(pass_Q.mean()), right=share_right(pass_Q, right_Q)
            )
        )
    return tuple(results)


def tabulate_points(
    plan: Plan, look: Alternatives, release: ForecastRelease | None, bound_A: Array, report: Report
) -> tuple[ForecastPoint, ...]:
    """ε against queries; the worst case never above the plan's, for there its run would stop."""
    voting, budget = look.voting, plan.budget
    constants = None if release is None else sanitiser_of(release.sanitize)
    sums = None if constants is None else suggest.simulate_sums(look.counts, voting, constants.order)
    answer = NoisyMax(voting.family, voting.multiplier)
    released = [charge for charge in plan.mechanism_plan.events if isinstance(charge.event, SanitisedCost)]
    points = []
    for queries in sorted({max(1, round(look.queries * i / POINTS)) for i in range(1, POINTS + 1)}):
        report(f"ε of {queries:,} queries")
        charges = [*plan.stage_charges, Charge(answer, min(queries, plan.as_plan_of(PatePlan).answers)), *released]
        if voting.selection is not None:
            charges.append(Charge(NoisyThreshold(voting.selection.multiplier), queries))
        worst = accountants.epsilon(charges, budget.delta, budget.neighbouring, budget.accountant)
        sanitised = None
        if sums is not None and constants is not None:
            sanitised = sums.published(constants, voting, queries, budget.delta).epsilon
        data = conversion.epsilon(votes.ORDERS, queries * bound_A, budget.delta).value
        worst = min(worst, plan.guarantee.epsilon)
        points.append(ForecastPoint(queries=queries, worst_case=worst, data_dependent=data, sanitised=sanitised))
    return tuple(points)
