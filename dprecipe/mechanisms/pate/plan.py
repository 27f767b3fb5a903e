"""PATE's plan: who votes, on how many queries, and what decides which of them are answered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from dprecipe.contract.mechanism import MechanismPlan
from dprecipe.contract.plan import Length, Recorded, UsualPlan
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.schema import Teachers
from dprecipe.privacy.events import Charge, Event


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A part of the queries."""

    check: Recorded
    """Its checks: at most one for each query of the round."""
    answer: Recorded
    """Its answers: at most one for each query of the round."""
    threshold: float
    """Votes needed beyond what the student expects. The plan's own threshold in the first round, and where the student
    expects nothing."""

    @property
    def queries(self) -> int:
        """The most queries that are put."""
        return self.check.count

    @property
    def multipliers(self) -> tuple[float, float]:
        """The standard deviations of the noise of a check, and of the noise on each count of an answer.

        Raises:
            TypeError: the charges are for something else.
        """
        check, answer = self.check.event, self.answer.event
        if not (isinstance(check, NoisyThreshold) and isinstance(answer, NoisyMax)):
            raise TypeError(f"a {check.kind} and a {answer.kind} are no round of queries")
        return check.noise_multiplier, answer.noise_multiplier


@dataclass(frozen=True, slots=True)
class PlannedInteraction:
    """The part that a student takes from the second round on."""

    rounds: tuple[PlannedRound, ...]
    confidence: float


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """The published cost of the votes: one event."""

    charge: Recorded
    order: float
    """α, the Rényi order of the bound."""
    failure: float
    """Chance that a noise exceeds its allowance."""

    @property
    def event(self) -> SanitisedCost:
        """The event of its noise.

        Raises:
            TypeError: the charge is for something else.
        """
        if not isinstance(self.charge.event, SanitisedCost):
            raise TypeError(f"a {self.charge.event.kind} publishes no cost of votes")
        return self.charge.event


@dataclass(frozen=True)
class PatePlan(UsualPlan):
    """A run of PATE."""

    kind: ClassVar[str] = "pate"
    released: ClassVar[tuple[str, ...]] = ("student's weights", "labels of the answered queries")
    scheme: ClassVar[str] = "disjoint_parts"
    size: int
    """Units in the data set; where their number is not declared, one of each teacher."""
    ensemble: Teachers
    partition_by: str
    """The permanent name of a unit, which decides the teacher that the unit is dealt to."""
    classes: int
    aggregator: Literal["lnmax", "gnmax", "confident_gnmax", "interactive_gnmax"]
    queries: int
    """The most queries that are put."""
    answers: int
    """The most queries that are answered."""
    votes: tuple[Recorded, ...]
    """The events of checks and answers: those that are sure to fit, and what a filter leaves beyond them."""
    threshold: float | None
    """T, in votes; `None`: every query is answered."""
    interaction: PlannedInteraction | None
    analysis: Literal["data_independent", "data_dependent"]
    publication: PlannedRelease | None

    @property
    def events(self) -> tuple[Charge, ...]:
        return (*self.votes, *(() if self.publication is None else (self.publication.charge,)))

    @property
    def indivisible(self) -> tuple[Charge, ...]:
        limit = self.filter_limit
        return () if limit is None else (Charge(FilterRest(1 / math.sqrt(limit)), 1),)

    @property
    def length(self) -> Length:
        return Length(self.queries, self.queries)

    @property
    def expected_batch(self) -> float:
        """Units of a teacher's part, on average."""
        return self.size / self.ensemble.count

    @property
    def reads_training_records(self) -> bool:
        return self.ensemble.votes is None

    @property
    def identity(self) -> str | None:
        return self.ensemble.identity

    @property
    def epsilon_note(self) -> str:
        return "" if self.filter_limit is None else ", whatever is answered"

    @property
    def answer(self) -> NoisyMax:
        """The event of an answered query; where rounds differ, of one in the first."""
        return next(charge.event for charge in self.votes if isinstance(charge.event, NoisyMax))

    @property
    def check(self) -> NoisyThreshold | None:
        """The event of a check; where rounds differ, of one in the first. `None`: every query is answered."""
        return next((charge.event for charge in self.votes if isinstance(charge.event, NoisyThreshold)), None)

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on a count of votes."""
        return self.answer.noise_multiplier * (math.sqrt(2) if self.answer.family == "laplace" else 1.0)

    def next_votes(self, queries_put: int) -> tuple[Event, ...]:
        """Returns the events of the query that follows the first `queries_put`."""
        if self.interaction is not None:
            for voting_round in self.interaction.rounds:
                if queries_put < voting_round.queries:
                    return voting_round.check.event, voting_round.answer.event
                queries_put -= voting_round.queries
        return (self.answer,) if self.check is None else (self.check, self.answer)

    @cached_property
    def filter_limit(self) -> float | None:
        """μ² at which the run stops; `None` where the number of answers is known in advance."""
        from dprecipe.mechanisms.pate.theory.filter import GaussianFilter

        return None if self.check is None else GaussianFilter.of(self.votes).limit

    def describe(self) -> list[tuple[str, str]]:
        ensemble, noise = self.ensemble, self.answer
        trained = "trained elsewhere"
        if ensemble.votes is None:
            trained = f"about {self.expected_batch:g} each, dealt by {self.partition_by}"
        rows = [
            ("teachers", f"{ensemble.count:,}, {trained}"),
            ("aggregator", f"{self.aggregator}, {self.classes:,} classes"),
            ("queries", f"{self.queries:,}{self._describe_guaranteed()}"),
            ("noise", f"{noise.family}, {noise.noise_multiplier:g} votes on each count"),
        ]
        if self.check is not None:
            check = f"gaussian noise of {self.check.noise_multiplier:g} votes"
            rows.insert(3, ("answers at most", f"{self.answers:,}"))
            rows.append(("answered", f"where the largest count reaches {self.threshold:g}, {check}"))
        interaction = self.interaction
        if interaction is not None:
            student_label = f"the student's own label above {interaction.confidence:g}"
            for number, voting_round in enumerate(interaction.rounds[1:], 2):
                checks, counts = voting_round.multipliers
                noises = f"noise of {checks:g} on the check and {counts:g} on each count"
                more = f"where votes exceed what the student expects by {voting_round.threshold:g}"
                rows.append((f"round {number}", f"{voting_round.queries:,} queries, {more}; {noises}"))
            rows.append(("else", student_label))
        if self.publication is not None:
            rows.append(("publishes", f"what these votes cost, at order {self.publication.order:g}"))
        return rows

    def _describe_guaranteed(self) -> str:
        """Describes how many queries the budget holds even if every one is answered; empty where it holds all."""
        sure = sum(c.count for c in self.votes if isinstance(c.event, NoisyThreshold)) or self.queries
        return f" at most; {sure:,} fit whatever is answered" if sure < self.queries else ""


PLAN: type[MechanismPlan] = PatePlan
