"""The audit of PATE: tests of its program that need no private record, nor a vote on one.

Depth `program`: synthetic units are dealt to teachers that read them and vote (`audit_teachers`); the real ballot puts
queries on synthetic votes, and each outcome is computed again from its noise and its ledger line (`audit_ballot`); the
exact cost of a query is enumerated (`audit_costs`). Depth `releases`: an attack tries to tell the answers to some votes
from the answers to the same votes with one moved. The real ballot answers the same query again and again. The votes and
the moved vote are fixed beforehand: the pair whose exact distributions are farthest apart. One attack judges each
answer. The other judges the answers of a whole run: it compares the sum of their log-likelihood ratios with the middle
between its expected values on the two sides.

Axes: M classes, O outcomes (the classes, then "not answered").
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.aggregators import Aggregator, list_rounds, noise
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.theory.filter import sum_filter
from dprecipe.mechanisms.pate.train.answer_distribution import (
    Histogram,
    information,
    likelihood_ratios,
    list_moves,
    release_distribution,
)
from dprecipe.mechanisms.pate.train.audit_ballot import examine_ballot, examine_frequencies
from dprecipe.mechanisms.pate.train.audit_costs import examine_costs, votes_that_tell
from dprecipe.mechanisms.pate.train.audit_teachers import examine_dealing, examine_teachers
from dprecipe.mechanisms.pate.train.program import lesson_of, teachers_of
from dprecipe.mechanisms.pate.train.scratch_ballot import open_scratch, with_queries
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy import accountants
from dprecipe.privacy.audit.results import AttackTrials, Correlation, Distance, Excess, Measure, TestEvidence, Variance
from dprecipe.privacy.events import Charge
from dprecipe.progress import silence_progress
from dprecipe.training.audit.request import Attack, AuditEvidence, AuditFinding, AuditRequest
from dprecipe.training.program.program import device_of

Found = tuple[str, str, TestEvidence]

DRAWS = 60_000
"""Draws of noise tested for each event of the plan."""


def audit(plan: Plan, request: AuditRequest) -> AuditEvidence:
    """Returns the findings at the depths that the request names.

    Raises:
        RunFailed: the program refuses to run on synthetic records.
    """
    parts = []
    if request.asks("program"):
        with silence_progress():
            tests = tuple(AuditFinding("program", *found) for found in examine_program(plan, request))
        elsewhere = teachers_of(plan).votes is not None
        remarks = ("the votes come from a file: that each unit reached one teacher is declared, not tested",)
        parts.append(AuditEvidence(tests, remarks=remarks if elsewhere else ()))
    if request.asks("releases"):
        parts.append(attack_releases(plan, request))
    return AuditEvidence.joined(parts)


def examine_program(plan: Plan, request: AuditRequest) -> Iterator[Found]:
    """Yields the findings of depth `program`."""
    budget = plan.budget
    epsilon = accountants.epsilon(plan.events, budget.delta, budget.neighbouring, budget.accountant)
    yield (
        "claimed_epsilon",
        "the charged events cost at most the claimed ε at the budget's δ",
        Excess(largest=min(epsilon, 1e300), allowed=plan.guarantee.epsilon * (1 + 1e-9)),
    )
    yield from _examine_noise(plan)
    teachers = teachers_of(plan)
    if teachers.votes is None:
        request.show("synthetic teachers", 0, 4)
        yield from examine_teachers(lesson_of(plan, teachers), device_of(plan.runtime.device))
        yield from examine_dealing(teachers.count)
    request.show("synthetic votes", 1, 4)
    yield from examine_ballot(plan)
    request.show("frequencies", 2, 4)
    yield from examine_frequencies(plan)
    request.show("exact costs", 3, 4)
    yield from examine_costs(plan)


def _examine_noise(plan: Plan) -> Iterator[Found]:
    """Tests the noise of every kind of event, drawn as the ballot draws it."""
    from scipy import special, stats

    events = dict.fromkeys(
        c.event for c in plan.as_plan_of(PatePlan).votes if isinstance(c.event, NoisyMax | NoisyThreshold)
    )
    root, earlier = Secrets(), None
    for number, event in enumerate(events):
        of = "check" if isinstance(event, NoisyThreshold) else "answer"
        name = f"{of}_{number + 1}"
        drawn = noise(event, root.stream("noise", number + 1), DRAWS) / event.noise_multiplier
        if isinstance(event, NoisyMax) and event.family == "laplace":
            drawn = -np.sign(drawn) * special.ndtri(np.exp(-np.abs(drawn)) / 2)
        yield (
            f"noise_scale_{name}",
            f"the noise of a {of} has the scale that its event claims",
            Variance(sum_squares=float(np.square(drawn).sum()), degrees=len(drawn)),
        )
        yield (
            f"noise_distribution_{name}",
            f"the noise of a {of} has the distribution that its event claims",
            Distance(statistic=float(stats.kstest(drawn, "norm").statistic), sample=len(drawn)),
        )
        product = float(drawn[0::2] @ drawn[1::2])
        yield (
            f"noise_independent_{name}",
            f"the noise of a {of} is independent from class to class and from query to query",
            Correlation(sum_products=product, pairs=len(drawn) // 2),
        )
        if earlier is not None:
            yield (
                f"noise_streams_{name}",
                f"the noise of a {of} is independent of that of the draw before",
                Correlation(sum_products=float(earlier @ drawn), pairs=len(drawn)),
            )
        earlier = drawn


Floats = NDArray[np.float64]

SQUARED_MU = 2.0
"""Σ μ² of an attacked run, where an attack sees most. A run never has more queries than the plan."""
AT_ONCE = 1_000_000
"""Largest number of noise values drawn for one ballot, unless a single run needs more."""
SECONDS = 60.0
EPSILONS = np.concatenate([np.linspace(0, 1, 9), np.linspace(1.25, 8, 28)])
"""Values of ε at which a claimed privacy profile is read."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class MovedVote:
    """A query's votes before and after one vote moves, and the exact distributions of its outcome."""

    counts: tuple[Histogram, Histogram]
    distributions: tuple[Floats, Floats]

    @property
    def ratios(self) -> Floats:
        """Returns the log-likelihood ratio of each outcome, (O,)."""
        return likelihood_ratios(*self.distributions)


def attack_releases(plan: Plan, request: AuditRequest) -> AuditEvidence:
    """Attacks the answers of the first round's aggregator, for lower bounds on the privacy loss."""
    planned = plan.as_plan_of(PatePlan)
    _, aggregator = list_rounds(planned)[0]
    moved = find_moved_vote(plan, aggregator)
    length = _run_length(plan, aggregator)
    runs = max(2, request.releases // 2)
    counts, tallies, done = np.zeros((2, 2), np.int64), np.zeros((2, 2), np.int64), 0
    single = _best_outcomes(moved)
    middle = length * sum(float(p @ moved.ratios) for p in moved.distributions) / 2
    at_once = max(1, AT_ONCE // (length * planned.classes))
    clock, remarks = time.monotonic(), []
    while done < runs:
        some = min(at_once, runs - done)
        for side in (0, 1):
            outcomes = _put(plan, moved.counts[side], some * length)
            tallies[side] += int(single[outcomes].sum()), outcomes.size
            scores = moved.ratios[outcomes].reshape(some, length).sum(axis=1)
            counts[side] += int((scores > middle).sum()), some
        done += some
        request.show("votes, put again and again", done, runs)
        if time.monotonic() - clock > SECONDS and done < runs:
            remarks.append(f"whole runs: {2 * done:,} instead of {2 * runs:,}, for time")
            break
    attacks = [
        _compare(plan, aggregator, 1, tallies, "one_answer", "the outcome of one query"),
        _compare(plan, aggregator, length, counts, "released_labels", f"the outcomes of a run of {length:,} queries"),
    ]
    if planned.interaction is not None:
        remarks.append("released labels: of the first round, where the student expects nothing")
    return AuditEvidence(attacks=tuple(attacks), remarks=tuple(remarks))


def find_moved_vote(plan: Plan, aggregator: Aggregator) -> MovedVote:
    """Finds the votes of the plan's teachers and the moved vote whose outcomes are easiest to tell apart."""
    planned = plan.as_plan_of(PatePlan)
    histograms = votes_that_tell(aggregator, planned.ensemble.count, planned.classes, planned.threshold)
    distributions = [release_distribution(aggregator, counts) for counts in histograms]
    one, other = max(
        list_moves(histograms), key=lambda move: information(distributions[move[0]], distributions[move[1]])
    )
    return MovedVote((histograms[one], histograms[other]), (distributions[one], distributions[other]))


def _run_length(plan: Plan, aggregator: Aggregator) -> int:
    """Returns the number of queries in a run that is attacked."""
    planned = plan.as_plan_of(PatePlan)
    if aggregator.answer.family == "laplace":
        return max(1, min(planned.queries, round(aggregator.answer.noise_multiplier**2 * SQUARED_MU / 2)))
    return max(1, min(planned.queries, planned.answers, round(SQUARED_MU / sum_filter(_charges(aggregator, 1)))))


def _charges(aggregator: Aggregator, queries: int) -> list[Charge]:
    check = [] if aggregator.check is None else [Charge(aggregator.check, queries)]
    return [*check, Charge(aggregator.answer, queries)]


def _best_outcomes(moved: MovedVote) -> NDArray[np.bool_]:
    """Marks the outcomes that are likelier before the vote moves, (O,): the best test on a single query."""
    return np.asarray(moved.ratios > 0)


def _put(plan: Plan, counts: Histogram, queries: int) -> NDArray[np.int64]:
    """Puts `queries` queries with these votes; returns the outcome of each: a class, or M for "not answered"."""
    many = with_queries(plan, queries)
    with open_scratch(many, np.tile(np.array(counts, np.int32), (queries, 1))) as scratch:
        ballot = scratch.put()
    return np.where(ballot.answered_queries, ballot.outcomes, len(counts))


def _compare(
    plan: Plan, aggregator: Aggregator, queries: int, tallies: NDArray[np.int64], name: str, words: str
) -> Attack:
    charges, laplace = _charges(aggregator, queries), aggregator.answer.family == "laplace"
    form: Measure = "mu" if not laplace else "epsilon" if queries == 1 else "rate"
    (hits_in, trials_in), (hits_out, trials_out) = tallies.tolist()
    trials = AttackTrials(
        form=form, positives_in=hits_in, trials_in=trials_in, positives_out=hits_out, trials_out=trials_out
    )
    relation, curve, claimed, delta = plan.budget.neighbouring, None, None, None
    if form == "mu":
        claimed = math.sqrt(sum_filter(charges))
    elif form == "epsilon":
        claimed, delta = 2 / aggregator.answer.noise_multiplier, 0.0
    else:
        deltas = [accountants.delta(charges, float(at), relation, "pld") for at in EPSILONS]
        curve = tuple((float(at), min(1.0, value)) for at, value in zip(EPSILONS, deltas, strict=True))
    text = f"{words}, with one vote here or there, by the real ballot: told apart no better than its events allow"
    return Attack("releases", name, text, trials, claimed, delta=delta, curve=curve)
