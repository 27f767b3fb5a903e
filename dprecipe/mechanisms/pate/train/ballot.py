"""The gate of votes: the only place where the teachers' votes meet anything else. Imports no torch.

A block of queries is put in this order, each step on disk before the next: its checks are reserved on the ledger; noise
is drawn, and the outcomes of the checks are recorded; the answers of the queries that passed are reserved; noise is
drawn, and the labels are recorded. The next block is put only if it fits the filter, or the plan, even if every check
passes. If it does not fit, the block is made smaller, down to one query; if that does not fit, the run stops. So the
queries that are asked, and the end of the run, are as if the queries were put one by one. They depend on earlier
outcomes alone, never on the cost of the votes.

`RemainingBudget` is checked before noise is drawn. If votes decide which queries are answered, the plan's Gaussian
filter limits the events. At the end, the rest of the filter is charged, so the ledger adds up to the filter's limit
however many queries were answered.

Guarantees: every answer and every check is paid for on the ledger before its noise is drawn; noise is float64 from a
stream that no other draw uses; a query with an outcome on disk is never put again.

Axes: Q queries, M classes; K queries of a block.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.aggregators import Aggregator, Counts, Scores, choose_class, noise
from dprecipe.mechanisms.pate.charges import count_charges, is_of_votes
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.theory.filter import GaussianFilter
from dprecipe.mechanisms.pate.train.answers import PASSED, UNASKED, AnswerEntry, AnswersFile, Outcomes
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.privacy.events import Charge, Event, count_by_event
from dprecipe.privacy.ledger import LedgerWriter, StopReason


@final
class RemainingBudget:
    """The budget that a run has left. It reserves and settles events in the ledger."""

    def __init__(self, plan: Plan, ledger: LedgerWriter, charged: Iterable[Charge]) -> None:
        """Starts from `charged`, the events that earlier attempts and paid steps of preprocessing have spent."""
        limit = plan.as_plan_of(PatePlan).filter_limit
        self._filter = None if limit is None else GaussianFilter(limit)
        self._planned = count_by_event(plan.events)
        self._budget = plan.budget
        self._ledger = ledger
        self._charged = count_by_event(charged)

    @property
    def charged(self) -> tuple[Charge, ...]:
        """Returns the events that count as spent, in all attempts."""
        return tuple(Charge(event, count) for event, count in self._charged.items())

    def count(self, event: Event) -> int:
        """Returns the number of these events that count as spent."""
        return self._charged[event]

    def holds(self, wanted: Iterable[Charge]) -> bool:
        """Returns whether all these events still fit."""
        after = self._charged + count_by_event(wanted)
        if self._filter is not None:
            return self._filter.holds(_votes(after)) and _others(after) <= _others(self._planned)
        charges = [Charge(event, count) for event, count in after.items()]
        if after <= self._planned and self._budget.is_reserved(charges):
            return True
        return self._budget.holds([Charge(event, count) for event, count in (after | _others(self._planned)).items()])

    def reserve(self, event: Event, count: int) -> str:
        """Records events that are about to run; returns the digest of their ledger line."""
        self._ledger.reserve(event, count)
        self._charged[event] += count
        return self._ledger.head

    def settle(self, event: Event, count: int) -> None:
        """Records that they ran."""
        self._ledger.settle(event, count)

    def charge_rest(self) -> None:
        """Charges the rest of the filter's limit; nothing fits after that."""
        if self._filter is None:
            return
        rest: FilterRest | None = self._filter.rest(_votes(self._charged))
        if rest is not None:
            self.reserve(rest, 1)
            self.settle(rest, 1)


def _others(counts: Counter[Event]) -> Counter[Event]:
    """Selects the events of publications beside the votes."""
    return Counter({event: count for event, count in counts.items() if isinstance(event, SanitisedCost)})


def _votes(counts: Counter[Event]) -> list[Charge]:
    """Selects the events that a filter counts."""
    return [Charge(event, count) for event, count in counts.items() if is_of_votes(event)]


BLOCKS = 50
"""Least number of blocks that the queries are cut into, if there are enough: a crash loses at most one block."""
LARGEST_BLOCK = 1 << 22
"""Largest number of counts in a block."""

Numbers = NDArray[np.int64]


def noise_streams(secrets: Secrets) -> Iterator[Stream]:
    """Yields the secret streams of an attempt's noise, in order."""
    return (secrets.stream("noise", index) for index in itertools.count(1))


@final
class Ballot:
    """The votes on all queries, and the outcome of each."""

    def __init__(
        self,
        counts_QM: Counts,
        aggregator: Aggregator,
        max_answers: int,
        remaining_budget: RemainingBudget,
        streams: Iterator[Stream],
        answers: AnswersFile,
    ) -> None:
        """Takes the outcomes that earlier attempts left in `answers`.

        `max_answers`: the number of teachers' answers at which the run is complete. `streams`: one for each draw, see
        `noise_streams`.
        """
        self._counts_QM = counts_QM
        self._aggregator = aggregator
        self._max_answers = max_answers
        self._remaining_budget = remaining_budget
        self._answers = answers
        self._streams = streams
        queries, classes = counts_QM.shape
        self._block = max(1, min(-(-queries // BLOCKS), LARGEST_BLOCK // classes))
        self.outcomes: Outcomes = np.full(queries, UNASKED)
        """Outcome of each query, (Q,): a label, `NOTHING`, `PASSED` or `UNASKED`."""
        self.answered_queries: NDArray[np.bool_] = np.zeros(queries, np.bool_)
        """Mark of the queries whose label is the teachers' answer, (Q,); other labels are a student's own."""
        self._full = False
        for entry in answers.before:
            self._take(entry)

    @property
    def queries_put(self) -> int:
        """Returns the number of queries that have been put."""
        return int((self.outcomes != UNASKED).sum())

    @property
    def answered(self) -> int:
        """Returns the number of queries that the teachers have answered."""
        return int(self.answered_queries.sum())

    @property
    def lost(self) -> bool:
        """Returns whether a crash has lost an outcome that was paid for."""
        charged = self._remaining_budget.charged
        checked = 0 if self._aggregator.check is None else count_charges(charged, NoisyThreshold) - self.queries_put
        return checked > 0 or count_charges(charged, NoisyMax) > self.answered

    @property
    def stop_reason(self) -> StopReason | None:
        """Returns the reason why no further query will be put; None while one may be."""
        if self.answered >= self._max_answers or not (self.outcomes == UNASKED).any():
            return "budget" if (self.outcomes == PASSED).any() else "completed"
        return "budget" if self._full else None

    def put(
        self,
        queries: range,
        expected_KM: Scores | None = None,
        stop: Callable[[], bool] = lambda: False,
        aggregator: Aggregator | None = None,
    ) -> None:
        """Puts these queries, in order, as far as the budget allows; those that have an outcome keep it.

        `expected_KM`: a student's scores of each query, if the aggregator compares the votes with them. `stop` is asked
        between blocks. `aggregator`: the one of this round, if it differs from that of the rounds before.
        """
        first = queries.start
        if aggregator is not None:
            self._aggregator = aggregator
        self._answer(first + np.flatnonzero(self.outcomes[first : queries.stop] == PASSED))
        while self.stop_reason is None and not stop():
            waiting = first + np.flatnonzero(self.outcomes[first : queries.stop] == UNASKED)
            if not len(waiting):
                return
            block = waiting[: self._count_askable(len(waiting))]
            if not len(block):
                self._full = True
                return
            if self._aggregator.check is not None:
                self._check(block, None if expected_KM is None else expected_KM[block - first])
                block = block[self.outcomes[block] == PASSED]
            self._answer(block)

    def _count_askable(self, wanted: int) -> int:
        """Returns the number of queries that may be put at once, whatever their outcomes are."""
        count: int = min(wanted, self._block, self._max_answers - self.answered)
        while count and not self._remaining_budget.holds(self._cost(count, count)):
            count //= 2
        return count

    def _cost(self, checks: int, answers: int) -> list[Charge]:
        check = self._aggregator.check
        return [*([] if check is None else [Charge(check, checks)]), Charge(self._aggregator.answer, answers)]

    def _check(self, block: Numbers, expected_KM: Scores | None) -> None:
        aggregator = self._aggregator
        if aggregator.check is None:
            return
        paid = self._remaining_budget.reserve(aggregator.check, len(block))
        noise_K = noise(aggregator.check, next(self._streams), len(block))
        passed_K = aggregator.passes(self._counts_QM[block], expected_KM, noise_K)
        outcomes = np.where(passed_K, PASSED, aggregator.unanswered(expected_KM, len(block)))
        self._record(AnswerEntry(block, outcomes, is_answer=False), paid)
        self._remaining_budget.settle(aggregator.check, len(block))

    def _answer(self, block: Numbers) -> None:
        event = self._aggregator.answer
        if not len(block):
            return
        if not self._remaining_budget.holds([Charge(event, len(block))]):  # a crash has used up what they need
            self._full = True
            return
        paid = self._remaining_budget.reserve(event, len(block))
        counts_KM = self._counts_QM[block]
        noise_KM = noise(event, next(self._streams), counts_KM.size)
        labels = choose_class(counts_KM, noise_KM.reshape(counts_KM.shape))
        self._record(AnswerEntry(block, labels, is_answer=True), paid)
        self._remaining_budget.settle(event, len(block))

    def _record(self, entry: AnswerEntry, paid: str) -> None:
        self._answers.append(entry, paid)
        self._take(entry)

    def _take(self, entry: AnswerEntry) -> None:
        self.outcomes[entry.queries] = entry.outcomes
        self.answered_queries[entry.queries] = entry.is_answer
