"""A forecast of a PATE recipe on simulated votes: answers, how many of them are right, and ε by every account.

Threshold, noise and the constants of sanitising have to be chosen without the private votes; the forecast is a basis
for that choice. Costs are means over simulated queries, times the queries planned; the worst case is the plan's own.

Axes: Q queries, M classes, A orders.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.document import RecipeName
from dprecipe.contract.mechanism import Facts
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
from dprecipe.mechanisms.pate.commands.forecast_document import Costs, Forecast, Simulated
from dprecipe.mechanisms.pate.commands.forecast_tables import tabulate_points, tabulate_rows, tabulate_thresholds
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.schema import Pate
from dprecipe.mechanisms.pate.theory import exact_votes, vote_sensitivity, votes
from dprecipe.mechanisms.pate.theory.votes import Voting
from dprecipe.mechanisms.pate.train.analysis import voting_of
from dprecipe.privacy import conversion

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
        simulated=Simulated(agreement=(agreement.low, agreement.high), seed=seed),
        delta=delta,
        planned=planned.queries,
        queries=queries,
        answered=answered,
        right=share_right(pass_Q, right_Q) or 0.0,
        stop=expect_stop(planned, queries, answered),
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
