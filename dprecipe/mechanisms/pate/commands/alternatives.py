"""Other plans of a recipe on the same simulated votes: what is answered, what is right, and where the run ends.

Axes: Q queries, M classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.mechanism import Facts
from dprecipe.faults import PlanRefused
from dprecipe.mechanisms.pate import account
from dprecipe.mechanisms.pate.commands import suggest
from dprecipe.mechanisms.pate.commands.forecast_document import ForecastRelease, Reason, Stop
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.schema import Pate, SmoothSensitivity
from dprecipe.mechanisms.pate.theory import votes
from dprecipe.mechanisms.pate.theory.sanitise import Sanitiser
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting
from dprecipe.privacy import accountants, rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.divergence import Array

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
    return float(pass_Q @ right_Q) / total if total > 1e-6 else None


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
