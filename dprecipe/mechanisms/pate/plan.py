"""PATE's plan: who votes, on how much, and what decides which queries are answered."""

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
    """Its checks: as many as the round has queries, at most."""
    answer: Recorded
    """Its answers, as many."""
    threshold: float
    """In votes beyond what the student expects; of the first round, and where it expects nothing, that of the plan."""

    @property
    def queries(self) -> int:
        """The most that are put."""
        return self.check.count

    @property
    def multipliers(self) -> tuple[float, float]:
        """Standard deviations of the noise of a check, and on each count of an answer.

        Raises:
            TypeError: the charges are for something else.
        """
        check, answer = self.check.event, self.answer.event
        if not (isinstance(check, NoisyThreshold) and isinstance(answer, NoisyMax)):
            raise TypeError(f"a {check.kind} and a {answer.kind} are no round of queries")
        return check.noise_multiplier, answer.noise_multiplier


@dataclass(frozen=True, slots=True)
class PlannedInteraction:
    """How a student takes part from the second round on."""

    rounds: tuple[PlannedRound, ...]
    confidence: float


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """What the votes cost, published: one event."""

    charge: Recorded
    order: float
    """α, the Rényi order of the bound."""
    failure: float
    """Chance that a noise exceeds its allowance."""

    @property
    def event(self) -> SanitisedCost:
        """Which noise it gets.

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
    """Units in the data set."""
    ensemble: Teachers
    partition_by: str
    """What names a unit for good: it decides which teacher the unit is dealt to."""
    classes: int
    aggregator: Literal["lnmax", "gnmax", "confident_gnmax", "interactive_gnmax"]
    queries: int
    """The most that are put."""
    answers: int
    """The most that are answered."""
    votes: tuple[Recorded, ...]
    """What checks and answers release: as many as are sure to fit, and what a filter leaves beyond them."""
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
        """What an answered query releases; where rounds differ, one of the first."""
        return next(charge.event for charge in self.votes if isinstance(charge.event, NoisyMax))

    @property
    def check(self) -> NoisyThreshold | None:
        """What a check of the votes releases, where rounds differ one of the first; `None`: every query is answered."""
        return next((charge.event for charge in self.votes if isinstance(charge.event, NoisyThreshold)), None)

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on a count of votes."""
        return self.answer.noise_multiplier * (math.sqrt(2) if self.answer.family == "laplace" else 1.0)

    def next_votes(self, queries_put: int) -> tuple[Event, ...]:
        """The events of the query after so many."""
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
        trained = f"about {self.expected_batch:g} each" if ensemble.votes is None else "trained elsewhere"
        rows = [
            ("teachers", f"{ensemble.count:,}, {trained}, dealt by {self.partition_by}"),
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
        """How many of the queries the budget holds even if every one is answered, where that is not all of them."""
        sure = sum(c.count for c in self.votes if isinstance(c.event, NoisyThreshold)) or self.queries
        return f" at most; {sure:,} fit whatever is answered" if sure < self.queries else ""


PLAN: type[MechanismPlan] = PatePlan
