"""The real ballot on synthetic votes, in a temporary folder, for audits.

Its ledger, its filter and its answers file are those of a run, and so is the order in which they are written. No vote
comes from private records, and nothing is spent.

Axes: Q queries, M classes, N teachers.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.aggregators import Aggregator, Counts, Scores, aggregator_of, list_rounds
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.train.answers import AnswersFile
from dprecipe.mechanisms.pate.train.ballot import Ballot, RemainingBudget, noise_streams
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.privacy import ledger
from dprecipe.privacy.events import Charge, charge_from_json
from dprecipe.privacy.ledger import LedgerWriter

Rounds = Sequence[tuple[range, Aggregator, Scores | None]]
"""For each round: its queries, its aggregator, and a student's scores of the queries."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PutEntry:
    """A line of the answers file, the noise of its outcomes, and the ledger line that paid for it."""

    queries: NDArray[np.int64]
    outcomes: NDArray[np.int64]
    is_answer: bool
    stream: Stream
    """Stream that repeats the draws of the outcomes' noise."""
    paid: Charge | None
    """Charge of the ledger line; None if the line is no reservation of one event."""


@final
@dataclass(slots=True, eq=False)
class ScratchBallot:
    """A ballot's folder, opened again for each attempt."""

    plan: Plan
    counts: Counts
    folder: Path
    draws: int = 0
    """Number of draws of noise."""
    unpaid: int = 0
    """Number of draws for which no new reservation was on disk."""
    secrets: Secrets = field(default_factory=Secrets)
    """Secrets of the last attempt."""

    def put(self, rounds: Rounds | None = None, stop: Callable[[], bool] = lambda: False, rest: bool = False) -> Ballot:
        """Makes one attempt: puts the queries of all rounds, as far as the budget goes or until `stop`.

        `rest`: also charges the rest of the filter, as a run does at its end.
        """
        planned = self.plan.as_plan_of(PatePlan)
        ledger_file = LedgerWriter(self.folder / "ledger.jsonl", self.plan.digest)
        before = ledger_file.before
        budget = RemainingBudget(self.plan, ledger_file, () if before is None else before.charges)
        self.secrets = Secrets()
        answers = AnswersFile(self.folder / "answers.jsonl", before, *self.counts.shape)
        streams = self._watched(self._count_reservations())
        ballot = Ballot(self.counts, aggregator_of(planned), planned.answers, budget, streams, answers)
        try:
            for part, aggregator, expected in rounds_of(self.plan) if rounds is None else rounds:
                ballot.put(part, expected, stop, aggregator)
            if rest:
                budget.charge_rest()
        finally:
            answers.close()
            ledger_file.abandon()
        return ballot

    def list_entries(self) -> list[PutEntry]:
        """Lists the entries that the last attempt has written, each with the stream that its noise must have come from.

        The n-th draw belongs to the n-th line, and to the ledger line that it names.
        """
        lines = (self.folder / "ledger.jsonl").read_bytes().splitlines()
        starts = [number for number, line in enumerate(lines) if json.loads(line)["type"] == "open"]
        heads = {_digest(line): json.loads(line) for line in lines[starts[-1] :]}
        entries: list[PutEntry] = []
        for line in (self.folder / "answers.jsonl").read_bytes().splitlines():
            content = json.loads(line)
            own = heads.get(content["ledger"])
            if own is None and content["ledger"] in {_digest(line) for line in lines}:
                continue  # of an earlier attempt
            paid = None
            if own is not None and own["type"] == "reserve" and len(own["events"]) == 1:
                paid = charge_from_json(own["events"][0])
            entries.append(
                PutEntry(
                    np.array(content["queries"], np.int64),
                    np.array(content["outcomes"], np.int64),
                    bool(content["is_answer"]),
                    self.secrets.stream("noise", len(entries) + 1),
                    paid,
                )
            )
        return entries

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Returns the charges that the ledger records."""
        return ledger.read(self.folder / "ledger.jsonl").charges

    def _watched(self, spent: int) -> Iterator[Stream]:
        """Yields the streams of an attempt, and at each draw looks for a new reservation in the ledger on disk.

        `spent`: the reservations that the attempt found.
        """
        for stream in noise_streams(self.secrets):
            reserved = self._count_reservations()
            self.draws += 1
            self.unpaid += reserved <= spent
            spent = reserved
            yield stream

    def _count_reservations(self) -> int:
        return (self.folder / "ledger.jsonl").read_bytes().count(b'"type":"reserve"')


def rounds_of(plan: Plan, seed: int = 0) -> list[tuple[range, Aggregator, Scores | None]]:
    """Returns the rounds of a plan, with a student's synthetic scores from the second on."""
    planned, generator = plan.as_plan_of(PatePlan), np.random.default_rng(seed)
    result: list[tuple[range, Aggregator, Scores | None]] = []
    for part, aggregator in list_rounds(planned):
        scores = generator.dirichlet(np.full(planned.classes, 0.3), len(part)) if part.start else None
        result.append((part, aggregator, scores))
    return result


@contextmanager
def open_scratch(plan: Plan, counts_QM: Counts) -> Iterator[ScratchBallot]:
    """Opens a ballot on these votes, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="dprecipe-audit-") as folder:
        yield ScratchBallot(plan, np.ascontiguousarray(counts_QM, dtype=np.int32), Path(folder))


def with_queries(plan: Plan, queries: int, number: int = 0) -> Plan:
    """Returns the plan with `queries` queries, all in round `number`; every one may be checked and answered."""
    planned = plan.as_plan_of(PatePlan)
    _, aggregator = list_rounds(planned)[number]
    check = () if aggregator.check is None else (Charge(aggregator.check, queries),)
    votes = (*check, Charge(aggregator.answer, queries))
    own = replace(planned, queries=queries, answers=queries, votes=votes, interaction=None, publication=None)
    return replace(
        plan, mechanism_plan=own, stages=(), spending=(), tuning=None, budget=replace(plan.budget, held=None)
    )


def _digest(line: bytes) -> str:
    return "sha256:" + hashlib.sha256(line).hexdigest()
