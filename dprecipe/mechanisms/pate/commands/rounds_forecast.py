"""The rounds of an interactive run on simulated votes, with a student whose skill is assumed.

From the second round on, the student is sure of a class for each query: of the one that most teachers choose with the
assumed chance, else of another. A query is answered where the votes exceed what it expects; the others keep the
student's own label, at no cost.

Axes: Q queries, M classes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pate.commands import simulate
from dprecipe.mechanisms.pate.commands.forecast_document import ForecastRound
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.plan import PatePlan, PlannedRound
from dprecipe.mechanisms.pate.theory import votes
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting
from dprecipe.privacy.divergence import Array

RARE = 1e-6
"""Sum of chances below which nothing is said of the answers."""


def forecast_rounds(
    plan: PatePlan, counts_QM: NDArray[np.int64], voting: Voting, agreement: Agreement, seed: int
) -> tuple[ForecastRound, ...]:
    """Forecasts each round on the same simulated votes; none of a run without rounds. The filter, and the planned
    number of answers, end the run in whichever round they are reached."""
    if plan.interaction is None or plan.filter_limit is None:
        return ()
    left, answers_left = plan.filter_limit * (1 + 1e-9), float(plan.answers)
    result = []
    for number, each in enumerate(plan.interaction.rounds):
        margin_Q, knows_Q = _expect(counts_QM, agreement, seed + number) if number else (counts_QM.max(axis=1), None)
        check, noise = each.multipliers
        pass_Q: Array = np.exp(votes.log_pass(margin_Q, VoteSelection(each.threshold, check))[0])
        right_Q = simulate.plurality_chance(counts_QM, replace(voting, multiplier=noise))
        answered = float(pass_Q.mean())
        asked = min(_count_asked(each, answered, left), answers_left / answered if answered > 0 else math.inf)
        left -= asked * (1 / check**2 + answered * 2 / noise**2)
        answers_left = max(0.0, answers_left - asked * answered)
        fail_Q = 1 - pass_Q
        result.append(
            ForecastRound(
                queries=each.queries,
                threshold=each.threshold,
                selection_multiplier=check,
                noise_multiplier=noise,
                answered=answered,
                right=_share(pass_Q, right_Q),
                own=0.0 if knows_Q is None else float(fail_Q.mean()),
                own_right=None if knows_Q is None else _share(fail_Q, knows_Q),
                asked=asked,
                answers=asked * answered,
            )
        )
    return tuple(result)


def _expect(counts_QM: NDArray[np.int64], agreement: Agreement, seed: int) -> tuple[Array, Array]:
    """Returns max (n - N p) of a student that is sure of one class, and 1 where that is the teachers': (Q,) each."""
    queries, classes = counts_QM.shape
    random = np.random.Generator(np.random.PCG64([seed, 1]))
    knows_Q: NDArray[np.bool_] = np.less(random.random(queries), agreement.student)
    other_Q = random.integers(1, classes, size=queries)
    class_Q = (counts_QM.argmax(axis=1) + np.where(knows_Q, 0, other_Q)) % classes
    excess_QM = counts_QM.astype(np.float64)
    excess_QM[np.arange(queries), class_Q] -= counts_QM.sum(axis=1)
    return excess_QM.max(axis=1), knows_Q.astype(np.float64)


def _count_asked(each: PlannedRound, answered: float, left: float) -> float:
    """Counts the queries of a round that the filter lets through, which has to hold one more check and answer."""
    check, noise = each.multipliers
    one, answer = 1 / check**2, 2 / noise**2
    spare = left - one - answer
    return min(float(each.queries), 1.0 + math.floor(spare / (one + answered * answer))) if spare >= 0 else 0.0


def _share(weight_Q: Array, right_Q: Array) -> float | None:
    total = float(weight_Q.sum())
    return min(1.0, float(weight_Q @ right_Q) / total) if total > RARE else None
