"""Audit of the ballot: a run's queries on synthetic votes, in an attempt that stops half way and one that resumes it.

Every outcome is computed again from its definition and the noise that its ledger line paid for. The charges on the
ledger are compared with the noise that was drawn, and with the plan.

Axes: Q queries, K queries of a ledger line, M classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.aggregators import NOTHING, Counts, Scores, noise
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.theory.filter import sum_filter
from dprecipe.mechanisms.pate.train.answer_distribution import Histogram, release_distribution
from dprecipe.mechanisms.pate.train.answers import PASSED
from dprecipe.mechanisms.pate.train.scratch_ballot import (
    PutEntry,
    Rounds,
    ScratchBallot,
    open_scratch,
    rounds_of,
    with_queries,
)
from dprecipe.privacy import accountants
from dprecipe.privacy.audit.results import Equality, Excess, Frequency, TestEvidence
from dprecipe.privacy.events import Charge, Event, count_by_event

Found = tuple[str, str, TestEvidence]

MAX_COUNTS = 2_000_000
"""Largest number of queries times classes of the synthetic votes."""
DRAWS = 20_000
"""Queries with the same votes in a test of frequencies."""
SLACK = 1e-9


def examine_ballot(plan: Plan) -> Iterator[Found]:
    """Tests the outcomes, the ledger and the charges of a run on synthetic votes."""
    plan = _without_stages(plan)
    counts_QM = make_votes(plan)
    rounds = rounds_of(plan)
    rounds = [(part, aggregator, expected) for part, aggregator, expected in rounds if part.start < len(counts_QM)]
    half, asked = [len(counts_QM) // 2], [0]

    def stop() -> bool:
        asked[0] += 1
        return asked[0] > 20

    with open_scratch(plan, counts_QM) as scratch:
        first = scratch.put(rounds, stop).outcomes.copy()
        entries = scratch.list_entries()
        ballot = scratch.put(rounds, rest=True)
        entries_after = scratch.list_entries()
        forgotten = int(((first >= 0) & (ballot.outcomes != first)).sum())
        differing, compared = 0, 0
        for entry in (*entries, *entries_after):
            wrong, count = _compare_outcomes(entry, counts_QM, rounds)
            differing, compared = differing + wrong, compared + count
        yield (
            "outcomes",
            "every check and every answer is what the noise of its charged event makes of all votes on the query",
            Equality(differing=differing + forgotten, compared=max(1, compared + len(half))),
        )
        yield (
            "reserved",
            "each draw of noise has a reservation of its own, on disk before it",
            Equality(differing=scratch.unpaid, compared=max(1, scratch.draws)),
        )
        yield _compare_charges(plan, scratch, [*entries, *entries_after], rounds)
        yield from _compare_limit(plan, scratch)
    asked_twice = _count_repeats([*entries, *entries_after])
    yield (
        "asked_once",
        "no query is checked twice or answered twice, and none beyond the plan's",
        Equality(
            differing=asked_twice + max(0, ballot.answered - plan.as_plan_of(PatePlan).answers), compared=len(counts_QM)
        ),
    )


def make_votes(plan: Plan, seed: int = 0) -> Counts:
    """Makes synthetic votes on a plan's queries, (Q, M): ties, counts at the threshold, unanimous and random votes."""
    planned, generator = plan.as_plan_of(PatePlan), np.random.default_rng(seed)
    teachers, classes = planned.ensemble.count, planned.classes
    queries = max(1, min(planned.queries, MAX_COUNTS // classes))
    shares_QM = generator.dirichlet(np.full(classes, 0.5), queries)
    counts_QM = np.stack([generator.multinomial(teachers, shares) for shares in shares_QM])
    special = list_telling(
        teachers, classes, planned.threshold, 0.0 if planned.check is None else planned.check.noise_multiplier
    )
    rows = generator.permutation(queries)[: queries // 2]
    counts_QM[rows] = np.resize(np.array(special), (len(rows), classes))
    return counts_QM.astype(np.int32)


def list_telling(teachers: int, classes: int, threshold: float | None, spread: float) -> list[Histogram]:
    """Lists histograms in which one vote may decide: the first classes are nearly tied, or near the threshold."""
    wanted = {teachers, teachers - 1, -(-teachers // 2), -(-teachers // 2) + 1, -(-teachers // min(classes, 3))}
    if threshold is not None:
        wanted |= {round(threshold + way * spread) for way in (-2, -1, 0, 1, 2)}
    result = []
    for first in sorted({min(max(number, 0), teachers) for number in wanted}):
        for second in {teachers - first, min(first, teachers - first), min(max(first - 1, 0), teachers - first)}:
            counts = [0] * classes
            counts[0], counts[1] = first, second
            counts[2 if classes > 2 else 1] += teachers - first - second
            result.append(tuple(counts))
    return sorted(set(result))


def examine_frequencies(plan: Plan) -> Iterator[Found]:
    """Tests that queries with the same votes are answered, and answered with the first class, as often as computed.

    The expected frequencies come from quadrature.
    """
    planned = plan.as_plan_of(PatePlan)
    many = with_queries(plan, DRAWS)
    rounds = rounds_of(many)
    for at, (part, aggregator, expected) in enumerate(rounds, 1):
        suffix = f"_round_{at}" if len(rounds) > 1 else ""
        telling = list_telling(planned.ensemble.count, planned.classes, planned.threshold,
                               0.0 if aggregator.check is None else aggregator.check.noise_multiplier)  # fmt: skip
        for number, name in ((1, "even"), (-2, "uneven")):
            # The histogram for which the first class is least certain to be the answer, then the median of the ranking.
            ranked = sorted(telling, key=lambda n: abs(0.5 - release_distribution(aggregator, n)[0]))
            counts = ranked[number - 1] if number > 0 else ranked[len(ranked) // 2]
            chances = release_distribution(aggregator, counts)
            with open_scratch(many, np.tile(np.array(counts, np.int32), (DRAWS, 1))) as scratch:
                ballot = scratch.put([(part, aggregator, expected)])
            answered = ballot.answered_queries
            if aggregator.check is not None:
                yield (
                    f"answered_{name}{suffix}",
                    f"synthetic votes are answered as often as quadrature says ({name})",
                    Frequency(successes=int(answered.sum()), trials=DRAWS, expected=float(1 - chances[-1])),
                )
            hits = int((answered & (ballot.outcomes == 0)).sum())
            yield (
                f"first_class_{name}{suffix}",
                f"the first class is the answer as often as quadrature says ({name})",
                Frequency(successes=hits, trials=DRAWS, expected=min(1.0, float(chances[0]))),
            )
        return


def _without_stages(plan: Plan) -> Plan:
    budget = replace(plan.budget, account=None, held=None)
    return replace(plan, stages=(), spending=(), tuning=None, budget=budget)


def _compare_outcomes(entry: PutEntry, counts_QM: Counts, rounds: Rounds) -> tuple[int, int]:
    """Counts the outcomes of a ledger line that differ from their definition, and all of its outcomes."""
    if entry.paid is None:
        return len(entry.queries), len(entry.queries)
    event, counts_KM = entry.paid.event, counts_QM[entry.queries].astype(np.float64)
    part, aggregator, expected = next(r for r in rounds if r[0].start <= entry.queries[0] < r[0].stop)
    if entry.is_answer and isinstance(event, NoisyMax):
        drawn = noise(event, entry.stream, counts_KM.size).reshape(counts_KM.shape)
        outcomes: NDArray[Any] = (counts_KM + drawn).argmax(axis=1)
    elif not entry.is_answer and isinstance(event, NoisyThreshold):
        drawn = noise(event, entry.stream, len(counts_KM))
        expected_KM = None if expected is None else expected[entry.queries - part.start]
        outcomes = _check(counts_KM, drawn, aggregator, expected_KM)
    else:
        return len(entry.queries), len(entry.queries)
    return int((outcomes != entry.outcomes).sum()), len(entry.queries)


def _check(
    counts_KM: NDArray[np.float64], noise_K: NDArray[np.float64], aggregator: Any, expected_KM: Scores | None
) -> NDArray[Any]:
    """Returns the outcomes of checked queries, by the definitions in the papers, (K,)."""
    if expected_KM is None:
        passed_K = counts_KM.max(axis=1) + noise_K >= aggregator.threshold
        return np.where(passed_K, PASSED, NOTHING)
    teachers = counts_KM.sum(axis=1, keepdims=True)
    passed_K = (counts_KM - teachers * expected_KM).max(axis=1) + noise_K >= aggregator.further
    own_K = np.where(expected_KM.max(axis=1) > aggregator.confidence, expected_KM.argmax(axis=1), NOTHING)
    return np.where(passed_K, PASSED, own_K)


def _compare_charges(plan: Plan, scratch: ScratchBallot, entries: list[PutEntry], rounds: Rounds) -> Found:
    """Tests that the ledger charges exactly the noise that was drawn, as events that the plan has for the round."""
    drawn: Counter[Event] = Counter()
    foreign = 0
    for entry in entries:
        if entry.paid is None:
            continue
        drawn[entry.paid.event] += len(entry.queries)
        _, aggregator, _ = next(r for r in rounds if r[0].start <= entry.queries[0] < r[0].stop)
        planned = _planned_events(plan, int(entry.queries[0]))
        foreign += entry.paid.event not in planned or (aggregator.answer not in planned)
    charged = count_by_event(c for c in scratch.charges if not isinstance(c.event, FilterRest))
    differing = sum(((drawn - charged) + (charged - drawn)).values()) + foreign
    return (
        "charged",
        "the ledger charges each check and each answer that was drawn, with the noise that the plan has for it",
        Equality(differing=min(differing, sum(drawn.values()) + len(entries)) if drawn else differing,
                 compared=max(1, sum(drawn.values()) + len(entries), differing)),
    )  # fmt: skip


def _planned_events(plan: Plan, query: int) -> tuple[Event, ...]:
    """Returns the events that the plan charges for a query: those of its round, if rounds differ."""
    planned = plan.as_plan_of(PatePlan)
    if planned.interaction is not None:
        for each in planned.interaction.rounds:
            if query < each.queries:
                return each.check.event, each.answer.event
            query -= each.queries
    return tuple(charge.event for charge in planned.votes)


def _compare_limit(plan: Plan, scratch: ScratchBallot) -> Iterator[Found]:
    planned, charges, budget = plan.as_plan_of(PatePlan), scratch.charges, plan.budget
    published = () if planned.publication is None else (planned.publication.charge,)
    epsilon = accountants.epsilon((*charges, *published), budget.delta, budget.neighbouring, budget.accountant)
    of_plan = accountants.epsilon(plan.events, budget.delta, budget.neighbouring, budget.accountant)
    yield (
        "charged_epsilon",
        "what a run charges, its filter's rest included, costs no more than its plan",
        Excess(largest=min(epsilon, 1e300), allowed=of_plan * (1 + 1e-6)),
    )
    if planned.filter_limit is not None:
        work = _squares(planned.votes)
        yield (
            "filter",
            "the filter ends a run before its Gaussian events exceed those of the plan",
            Excess(largest=_squares(charges), allowed=work * (1 + 1e-9)),
        )
        yield (
            "filter_limit",
            "the limit of the filter is that of the plan's events",
            Excess(largest=sum_filter(planned.votes), allowed=work * (1 + 1e-9)),
        )


def _squares(charges: Sequence[Charge]) -> float:
    """Returns Σ μ² of checks, answers and the rest of a filter."""
    total = 0.0
    for charge in charges:
        event = charge.event
        if isinstance(event, NoisyMax | NoisyThreshold | FilterRest):
            total += charge.count * (2 if isinstance(event, NoisyMax) else 1) / float(event.noise_multiplier) ** 2
    return total


def _count_repeats(entries: list[PutEntry]) -> int:
    """Counts the queries that are repeated among the checks, or among the answers."""
    repeats = 0
    for is_answer in (False, True):
        numbers = [entry.queries for entry in entries if entry.is_answer is is_answer]
        every = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
        repeats += len(every) - len(np.unique(every))
    return repeats
