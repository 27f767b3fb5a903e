"""The gate of votes: the only place where what the teachers voted meets anything else. No torch.

A block of queries is put in this order, each step on disk before the next: its checks are reserved on the ledger; noise
is drawn, and which were passed is recorded; the answers of those are reserved; noise is drawn, and the labels are
recorded. The next block is put only if the filter, or the plan, holds it even if every check is passed; where it does
not, the block is made smaller, down to one query, and then the run stops. So what is asked, and when it ends, is as if
the queries were put one by one, and depends on earlier outcomes alone, never on what the votes cost.

Guarantees: every answer and every check is paid for on the ledger before its noise is drawn; noise is float64 from a
stream that no other draw uses; a query with an outcome on disk is never put again.

Axes: Q queries, M classes; K queries of a block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pate.aggregators import Aggregator, Counts, Scores, choose_class, noise
from dprecipe.mechanisms.pate.charges import count_charges
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.train.answers import PASSED, UNASKED, AnswerEntry, AnswersFile, Outcomes
from dprecipe.mechanisms.pate.train.remaining_budget import RemainingBudget
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.privacy.events import Charge
from dprecipe.privacy.ledger import StopReason

BLOCKS = 50
"""A crash loses at most a block: no block is longer than this part of the queries …"""
LARGEST_BLOCK = 1 << 22
"""… nor holds more counts than this."""

Numbers = NDArray[np.int64]


def noise_streams(secrets: Secrets) -> Iterator[Stream]:
    """The secret streams of an attempt's noise, one after the other."""
    return (secrets.stream("noise", index) for index in itertools.count(1))


@final
class Ballot:
    """The votes of all queries, and what has become of each."""

    def __init__(
        self,
        counts_QM: Counts,
        aggregator: Aggregator,
        max_answers: int,
        remaining_budget: RemainingBudget,
        streams: Iterator[Stream],
        answers: AnswersFile,
    ) -> None:
        """`max_answers`: when the teachers have answered so many, the run is complete. `streams`: one for each draw,
        see `noise_streams`."""
        self._counts_QM = counts_QM
        self._aggregator = aggregator
        self._max_answers = max_answers
        self._remaining_budget = remaining_budget
        self._answers = answers
        self._streams = streams
        queries, classes = counts_QM.shape
        self._block = max(1, min(-(-queries // BLOCKS), LARGEST_BLOCK // classes))
        self.outcomes: Outcomes = np.full(queries, UNASKED)
        """Of each query: its label, `NOTHING`, `PASSED` or `UNASKED`."""
        self.answered_queries: NDArray[np.bool_] = np.zeros(queries, np.bool_)
        """Which labels are the teachers' answers; the others are a student's own."""
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
        """Whether something was paid for whose outcome a crash has taken."""
        charged = self._remaining_budget.charged
        checked = 0 if self._aggregator.check is None else count_charges(charged, NoisyThreshold) - self.queries_put
        return checked > 0 or count_charges(charged, NoisyMax) > self.answered

    @property
    def stop_reason(self) -> StopReason | None:
        """Why no further query will be put; None while one may be."""
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
        """Put these queries, in order, as far as that is allowed; those that have an outcome keep it.

        `aggregator`: of their round, where it is another than that of the rounds before.

        `expected_KM`: a student's scores of each of them, where the aggregator asks for more than it expects. `stop` is
        asked between blocks.
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
        """How many queries may be put at once, whatever becomes of them."""
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
        if not self._remaining_budget.holds([Charge(event, len(block))]):  # a crash has taken what was meant for them
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
