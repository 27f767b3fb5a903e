"""A forecast of a PATE recipe on simulated votes: answers, how many of them are right, and ε by every account.

Threshold, noise and the constants of sanitising have to be chosen without the private votes; the forecast is a basis
for that choice. Costs are means over simulated queries, times the queries planned; the worst case is the plan's own.
Its tables are over thresholds, over the check's noise, and ε over the number of queries.

Axes: Q queries, M classes, A orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.document import RecipeName
from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import Plan
from dprecipe.faults import PlanRefused
from dprecipe.mechanisms.pate import account
from dprecipe.mechanisms.pate.commands import simulate, suggest
from dprecipe.mechanisms.pate.commands.forecast_document import (
    Costs,
    Forecast,
    ForecastPoint,
    ForecastRelease,
    ForecastRow,
    ForecastThreshold,
    Reason,
    Simulated,
    Stop,
)
from dprecipe.mechanisms.pate.commands.rounds_forecast import forecast_rounds
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.schema import Pate, SmoothSensitivity
from dprecipe.mechanisms.pate.theory import exact_votes, vote_sensitivity, votes
from dprecipe.mechanisms.pate.theory.sanitise import Sanitiser
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting
from dprecipe.mechanisms.pate.train.analysis import voting_of
from dprecipe.privacy import accountants, conversion, rounding
from dprecipe.privacy.adjacency import Neighbouring
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


SIMULATED = 5000
"""The most queries that are simulated; if there are more, their mean stands for the rest."""
EXACT_QUERIES, EXACT_CLASSES = 250, 20
"""Limits of the exact cost, which takes seconds: the queries it is computed for, and the most classes."""
DELTA = 1e-6
"""The δ' of suggested constants; a tenth of δ where that is less."""


def forecast_plan(plan: Plan, spec: Pate, facts: Facts, agreement: Agreement, seed: int, report: Report) -> Forecast:
    """Forecasts the plan of `spec`, with teachers that agree as is assumed. `report` gets the name of each task."""
    voting, planned, delta = voting_of(plan), plan.as_plan_of(PatePlan), plan.budget.delta
    queries, interaction = count_first_round(planned), planned.interaction
    report("simulated votes")
    counts_QM = simulate.simulate_counts(voting.teachers, voting.classes, min(queries, SIMULATED), agreement, seed)
    right_Q = simulate.plurality_chance(counts_QM, voting)
    pass_Q = pass_chances(counts_QM, voting.selection)
    answered = float(pass_Q.mean())
    report("costs of the votes")
    bound_A = votes.bound_rdp(counts_QM, voting, votes.ORDERS).mean(axis=0)
    epsilon = conversion.epsilon(votes.ORDERS, queries * bound_A, delta)
    costs = Costs(
        papers=conversion.epsilon(
            votes.ORDERS,
            votes.expected_cost(counts_QM, voting, votes.ORDERS) * (queries / len(counts_QM)),
            delta,
            "classic",
        ).value,
        bound=epsilon.value,
        exact=_exact(counts_QM, voting, queries, delta, report),
    )
    look = Alternatives(spec, facts, counts_QM, voting, queries, answered)
    own = suggested = None
    if interaction is None and not facts.stages and voting.teachers <= vote_sensitivity.MAX_TEACHERS:
        failure = min(DELTA, delta / 10) if spec.sanitize is None else spec.sanitize.delta
        own = None if spec.sanitize is None else look.release(sanitiser_of(spec.sanitize))
        suggested = look.release(
            suggest.suggest_constants(counts_QM, voting, queries, delta, failure, epsilon.order, report)
        )
    unpublished = plan.guarantee.epsilon
    if spec.sanitize is not None:
        unpublished = look.planned(spec.model_copy(update={"sanitize": None}))[1] or unpublished
    selection = voting.selection
    return Forecast(
        recipe=RecipeName(name=plan.name, digest=plan.source.digest),
        aggregator=spec.aggregator.kind,
        teachers=voting.teachers,
        classes=voting.classes,
        noise_multiplier=voting.multiplier,
        threshold=None if selection is None else selection.threshold,
        selection_multiplier=None if selection is None else selection.multiplier,
        simulated=Simulated(agreement=(agreement.low, agreement.high), student=agreement.student, seed=seed),
        delta=delta,
        planned=planned.queries,
        queries=queries,
        answered=answered,
        right=share_right(pass_Q, right_Q) or 0.0,
        stop=expect_stop(planned, queries, answered),
        rounds=forecast_rounds(planned, counts_QM, voting, agreement, seed),
        has_paid_steps=bool(facts.stages),
        worst_case=plan.guarantee.epsilon,
        unpublished=unpublished,
        data_dependent=costs,
        sanitised=own,
        suggested=suggested,
        rows=tabulate_rows(plan, look, right_Q, report),
        thresholds=tabulate_thresholds(counts_QM, voting, right_Q),
        points=tabulate_points(plan, look, own or suggested, bound_A, report),
    )


def _exact(counts_QM: NDArray[np.int64], voting: Voting, queries: int, delta: float, report: Report) -> float | None:
    """Computes ε with the exact cost of answers; some of the queries stand for all."""
    if voting.family != "gaussian" or voting.classes > EXACT_CLASSES:
        return None
    some_QM = counts_QM[:EXACT_QUERIES]

    def report_progress(done: int, of: int) -> None:
        report(f"exact costs, {done} of {of} queries")

    answer_QA = exact_votes.exact_gnmax_rdp(some_QM, voting.multiplier, votes.ORDERS, report_progress)
    mean_A = votes.bound_rdp(some_QM, voting, votes.ORDERS, answer_QA=answer_QA).mean(axis=0)
    return conversion.epsilon(votes.ORDERS, queries * mean_A, delta).value


Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Other plans of the recipe, on the same simulated votes."""

    spec: Pate
    facts: Facts
    counts: NDArray[np.int64]
    voting: Voting
    queries: int
    answered: float

    def planned(self, spec: Pate) -> tuple[PatePlan | None, float | None]:
        """Plans `spec` and computes the ε of all that the plan releases; both None where the plan is refused."""
        budget = self.facts.budget
        try:
            plan = account.plan(spec, self.facts).plan
        except PlanRefused:
            return None, None
        relation = Neighbouring(budget.neighbouring)
        charges = self.facts.release(plan.events)
        epsilon = accountants.epsilon(charges, budget.delta, relation, budget.accountant)
        return plan, rounding.round_up(epsilon)

    def release(self, constants: Sanitiser) -> ForecastRelease:
        """Forecasts a release with these constants, in a plan that publishes it."""
        sanitize = SmoothSensitivity(
            method="smooth_sensitivity",
            order=constants.order,
            beta=constants.smoothness,
            multiplier=constants.value_multiplier,
            scale_multiplier=constants.sensitivity_multiplier,
            delta=constants.failure,
        )
        spec = self.spec.model_copy(update={"analysis": "data_dependent", "sanitize": sanitize})
        plan, worst = self.planned(spec)
        voting, queries, stop = self.voting, self.queries, None
        if plan is not None:  # a release takes budget, so solving the plan gives another noise or other queries
            voting = replace(voting, multiplier=plan.answer.noise_multiplier)
            queries = plan.queries
            stop = expect_stop(plan, queries, self.answered)
        sums = suggest.simulate_sums(self.counts, voting, constants.order)
        result = sums.published(constants, voting, queries, self.facts.budget.delta)
        figures = {name: getattr(result, name) for name in ("epsilon", "delta", "deviation", "total", "cost")}
        return ForecastRelease(sanitize=sanitize, **figures, worst_case=worst, stop=stop)


def sanitiser_of(block: SmoothSensitivity) -> Sanitiser:
    """Returns the constants that a recipe's block states."""
    return Sanitiser(block.order, block.beta, block.multiplier, block.scale_multiplier, block.delta)


def count_first_round(plan: PatePlan) -> int:
    """Counts the queries that depend on the votes alone: all, or those of an interactive run's first round."""
    queries, interaction = plan.queries, plan.interaction
    return queries if interaction is None else max(1, interaction.rounds[0].queries)


def pass_chances(counts_QM: NDArray[np.int64], selection: VoteSelection | None) -> Array:
    """Computes Pr[the query is answered]: (Q,)."""
    if selection is None:
        return np.ones(len(counts_QM))
    chances_Q: Array = np.exp(votes.log_pass(counts_QM.max(axis=1), selection)[0])
    return chances_Q


def share_right(pass_Q: Array, right_Q: Array) -> float | None:
    """Computes the share of the answers that are right; None where hardly any answer is given."""
    total = float(pass_Q.sum())
    return min(1.0, float(pass_Q @ right_Q) / total) if total > 1e-6 else None  # sums round


def expect_stop(plan: PatePlan, queries: int, answered: float) -> Stop:
    """Finds where a run ends on average; the filter ends it when it can't hold one more check and answer."""
    max_answers = float(plan.answers)
    ends: dict[Reason, float] = {
        "queries": float(queries),
        "answers": max_answers / answered if answered > 0 else math.inf,
    }
    if plan.check is not None and plan.filter_limit is not None:
        check, answer = 1 / plan.check.noise_multiplier**2, 2 / plan.answer.noise_multiplier**2
        left = plan.filter_limit * (1 + 1e-9) - check - answer
        ends["filter"] = 1 + math.floor(left / (check + answered * answer)) if left >= 0 else 0.0
    reason = min(ends, key=lambda name: ends[name])
    answers = min(answered * ends[reason], max_answers)
    return Stop(queries=ends[reason], answers=answers, reason=reason, max_queries=ends.get("filter"))
