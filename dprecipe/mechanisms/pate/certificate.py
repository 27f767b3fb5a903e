"""PATE's part of a certificate: who voted, on how many queries, and what decided which of them were answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from dprecipe.contract.certificate import NOISE_SCALE, CertificatePart, Section, unit_of
from dprecipe.contract.drawing import Axes, Figure
from dprecipe.contract.facts import (
    Access,
    AggregationFacts,
    BudgetFacts,
    NoiseFacts,
    NoisyFacts,
    PrivacyUnit,
    Probability,
    Rendered,
    Word,
)
from dprecipe.contract.plan import Plan
from dprecipe.language.base import Block, NonNegativeInt, PositiveFloat, PositiveInt
from dprecipe.mechanisms.pate import charges as votes
from dprecipe.mechanisms.pate import cost_statement, labels
from dprecipe.mechanisms.pate.cost_statement import DataDependentFacts, VotesCost
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.plan import PatePlan, PlannedInteraction
from dprecipe.mechanisms.pate.theory.sanitise import Sanitised
from dprecipe.privacy.events import Charge, Event

CHECKS = {
    **NOISE_SCALE,
    "parts_disjoint": "each unit goes to one teacher, and to the same one after other units are added, removed or "
    "renamed",
    "vote_sensitivity": "replacing or removing a record changes only the votes of its own teacher",
}
CHECKS_OF_A_FILE = {
    **NOISE_SCALE,
    "vote_counts": "each teacher votes once on every query, for one of the declared classes",
}
"""For votes from a file: teachers trained elsewhere can't be checked."""


class VotingRoundFacts(Block):
    """A part of the queries."""

    queries: PositiveInt = Field(description="the most that are put")
    threshold: PositiveFloat = Field(
        description="in votes, of the first round; in votes beyond what the student expects, of the others"
    )
    selection_multiplier: PositiveFloat = Field(description="standard deviation of the check's noise, in votes")
    multiplier: PositiveFloat = Field(description="standard deviation of the noise on each count, in votes")


class InteractionFacts(Block):
    """The part that a student took in choosing which queries are answered."""

    rounds: Annotated[tuple[VotingRoundFacts, ...], Field(min_length=2, max_length=100)]
    confidence: Probability = Field(description="above it, the student's own prediction is the label")


class VotingFacts(Block):
    """The teachers, the number of queries, and what decided which of them were answered."""

    teachers: PositiveInt
    teachers_from: Literal["recipe", "file"] = Field(description="`file`: trained elsewhere, votes read from a file")
    partition: Rendered = ""
    classes: PositiveInt
    aggregator: Word
    threshold: PositiveFloat | None = Field(description="T, in votes; null: every query is answered")
    selection_multiplier: PositiveFloat | None = Field(
        description="standard deviation of the check's noise, in votes; null: there is no check"
    )
    interaction: InteractionFacts | None
    queries_planned: PositiveInt = Field(description="queries, at most")
    queries_charged: NonNegativeInt = Field(description="asked, or lost in a crash")
    answers_planned: PositiveInt = Field(description="answers, at most")
    answers_charged: NonNegativeInt = Field(description="answered, or lost in a crash")
    filter: PositiveFloat | None = Field(
        description="limit on Σ μ² of the votes, which the run is charged whatever was answered; null: the number of "
        "answers was known in advance"
    )


class PateFacts(NoisyFacts):
    """Noise on the counts of teachers' votes."""

    kind: Literal["pate"]
    voting: VotingFacts
    data_dependent: DataDependentFacts | None = Field(None, description="where the recipe publishes it")


class PateCertificate(CertificatePart[PateFacts, VotesCost, Sanitised]):
    """PATE's part of a certificate."""

    facts = PateFacts
    progress = ("query", "queries")
    audit_tests = frozenset({"claimed_epsilon", "outcomes", "reserved", "charged", "charged_epsilon", "asked_once"})

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: VotesCost | None) -> PateFacts:
        planned, stated = plan.as_plan_of(PatePlan), None
        if numbers is not None and votes.publishes_cost(plan):
            stated = cost_statement.state_cost(plan, numbers)
        return PateFacts(
            kind="pate",
            noise=NoiseFacts(
                family=planned.answer.family,
                multiplier=planned.answer.noise_multiplier,
                scale=planned.answer.noise_multiplier,
                standard_deviation=planned.noise_deviation,
                added_to="each count of the teachers' votes for a class, before the largest is chosen",
            ),
            voting=_voting(plan, charges),
            data_dependent=stated,
            aggregation=AggregationFacts(
                of="the class with the most noisy votes of each answered query; the counts themselves stay in private/",
                divisor=None,
            ),
        )

    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        return unit_of(plan, f"{_partition(plan)}; so one {plan.guarantee.unit} moves at most one vote on a query")

    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        return CHECKS if plan.mechanism_plan.reads_training_records else CHECKS_OF_A_FILE

    def list_unprotected(self, plan: Plan) -> Sequence[str]:
        teachers = plan.as_plan_of(PatePlan).ensemble.count
        asked = "which public records" if plan.data.public is not None else "what"
        return (
            f"the number of teachers, {teachers}, and {asked} they were asked about",
            "the votes, what they cost, the teachers, and the key that dealt the records: they stay in private/",
        )

    def describe_training(self, plan: Plan) -> str:
        paid = "paid steps of preprocessing, each of which is among the events, and by " if plan.stages else ""
        readers = f"private records are read by {paid}teachers alone"
        if not plan.mechanism_plan.reads_training_records:
            readers = "private records were read by teachers alone, before this run, and are not opened in it"
        return f"{readers}, and teachers speak through noisy votes alone, each of which is one of the events"

    def describe_public_data(self, plan: Plan) -> Access | None:
        if plan.data.public is None:
            return None
        learns = " and the student learns from them" if plan.has_model else ""
        return Access(
            status="public",
            text=f"unlabelled records that the recipe declares public: teachers are asked about them{learns}; labels "
            "of theirs are never read",
        )

    def compute_numbers(
        self, plan: Plan, charges: Sequence[Charge], epsilon: float, published: Sanitised | None
    ) -> VotesCost | None:
        return None if published is None else cost_statement.compute_cost(plan, charges, published)

    def read_numbers(self, facts: PateFacts) -> VotesCost | None:
        stated = facts.data_dependent
        return (
            None
            if stated is None
            else VotesCost(stated.sanitised, stated.epsilon, stated.cost, stated.worst_case_epsilon)
        )

    def read_published(self, facts: PateFacts) -> Sanitised | None:
        return None if facts.data_dependent is None else facts.data_dependent.sanitised

    def check_numbers(self, facts: PateFacts, plan: Plan, charges: Sequence[Charge], epsilon: float) -> list[str]:
        stated = facts.data_dependent
        if stated is None or not votes.publishes_cost(plan):
            return []
        return cost_statement.recompute_statement(stated, plan, charges)

    def count_steps(self, event: Event) -> int:
        return 1 if isinstance(event, NoisyMax | NoisyThreshold) else 0

    def count_steps_charged(self, charges: Sequence[Charge]) -> int:
        return votes.count_queries(charges)

    def count_reservable(self, plan: Plan) -> int:
        return plan.length.steps

    def is_adaptive(self, plan: Plan) -> bool:
        return votes.is_filtered(plan)

    def may_charge(self, plan: Plan, event: Event) -> bool:
        if votes.is_filtered(plan) and isinstance(event, FilterRest):
            return True  # of any size: the sum of all charges is compared with the limit
        return any(event == charge.event for charge in plan.events)

    def check_charges(self, plan: Plan, charges: Sequence[Charge], budget: BudgetFacts) -> list[str]:
        return votes.find_contradictions(plan, charges, budget)

    def check_run(self, plan: Plan, facts: PateFacts, budget: BudgetFacts) -> list[str]:
        if facts.data_dependent is not None and not votes.publishes_cost(plan):
            return ["mechanism.data_dependent: this recipe publishes no such thing"]
        if facts.data_dependent is None and votes.publishes_cost(plan) and budget.attempts == 1:
            return ["mechanism.data_dependent: this recipe publishes it, and nothing took it from this run"]
        return []

    def may_end_early(self, facts: PateFacts) -> bool:
        """Tells if a vote can end before its last query: it does once the most answers were given."""
        return facts.voting.answers_charged >= facts.voting.answers_planned

    def list_companions(self, plan: Plan) -> frozenset[str]:
        return frozenset({labels.LABELS}) if plan.release.labels else frozenset()

    def check_companion(self, name: str, content: bytes, plan: Plan, facts: PateFacts, from_python: bool) -> list[str]:
        return labels.find_differences(content, plan, facts.voting.answers_charged, from_python)

    def describe_noise(self, facts: PateFacts) -> str:
        return f"{facts.noise.family} noise of {facts.noise.multiplier:g} votes"

    def describe_run(self, plan: Plan, facts: PateFacts) -> str:
        voting = facts.voting
        if not plan.has_model:
            return (
                f"No model was trained: {voting.teachers} teachers (`{facts.kind}`, `{voting.aggregator}`) labelled "
                f"{voting.answers_charged} of the\n{voting.queries_charged} records that they were asked about, by "
                f"votes with {self.describe_noise(facts)}."
            )
        return (
            f", a student of {voting.teachers} teachers (`{facts.kind}`, `{voting.aggregator}`):\n"
            f"trained on public records, {voting.answers_charged} of them labelled by the teachers' votes with\n"
            f"{self.describe_noise(facts)}; the teachers were asked about {voting.queries_charged}."
        )

    def list_headlines(self, facts: PateFacts) -> Sequence[tuple[str, str]]:
        return ((f"{facts.voting.answers_charged:,} answers", f"by {facts.voting.teachers:,} teachers"),)

    def list_statements(self, facts: PateFacts) -> Sequence[tuple[str, str]]:
        stated = facts.data_dependent
        return (
            ()
            if stated is None
            else (("these votes", f"cost {stated.epsilon!r} at δ = {stated.delta!r}: {stated.sentence}"),)
        )

    def list_sections(self, facts: PateFacts) -> Sequence[Section]:
        """Returns one section: what decided which queries were answered and, where published, what these votes cost."""
        stated = facts.data_dependent
        numbers: tuple[tuple[str, str], ...] = ()
        if stated is not None:
            numbers = (
                (f"ε = {stated.epsilon:g}", f"what these votes cost, at δ = {stated.delta:g}"),
                (f"ε = {stated.worst_case_epsilon:g}", "the worst case, at the same δ"),
                (stated.smaller.replace("_", " "), "is the smaller"),
            )
        return (
            Section(
                "The vote", _rows(facts, self.describe_noise(facts)), numbers, "" if stated is None else stated.sentence
            ),
        )

    def list_figures(
        self, plan: Plan, facts: PateFacts, charges: Sequence[Charge], epsilon: float, profile: Sequence[float]
    ) -> Sequence[Figure]:
        voting = facts.voting
        return (
            Figure(
                "answered",
                "How much the teachers answered: answers are released anyway.",
                lambda axes: draw_answered(axes, count_answered(charges)),
                frozenset(
                    {"queries", "answered, of those put", f"{voting.answers_charged:,} of {voting.queries_charged:,}"}
                ),
            ),
        )

    def list_checked(self, plan: Plan) -> Sequence[str]:
        if not votes.is_filtered(plan):
            return ()
        return ("the run is charged all that its filter allowed, whatever was answered",)

    def list_notes(self, facts: PateFacts) -> Sequence[str]:
        if facts.data_dependent is None:
            return ()
        return (
            "what these votes cost, with noise, is taken as stated: what follows from it was worked out again, but not "
            "that a run drew it",
        )

    def list_companion_notes(self, names: frozenset[str]) -> Sequence[str]:
        if labels.LABELS not in names:
            return ()
        return ("which record has which label in labels.csv is taken as stated: no votes are here to compare it with",)


def _voting(plan: Plan, charges: Sequence[Charge]) -> VotingFacts:
    planned = plan.as_plan_of(PatePlan)
    return VotingFacts(
        teachers=planned.ensemble.count,
        teachers_from="recipe" if planned.reads_training_records else "file",
        partition=_partition(plan),
        classes=planned.classes,
        aggregator=planned.aggregator,
        threshold=planned.threshold,
        selection_multiplier=None if planned.check is None else planned.check.noise_multiplier,
        interaction=None if planned.interaction is None else _interaction(planned.interaction),
        queries_planned=planned.queries,
        queries_charged=votes.count_queries(charges),
        answers_planned=planned.answers,
        answers_charged=votes.count_charges(charges, NoisyMax),
        filter=planned.filter_limit,
    )


def _interaction(planned: PlannedInteraction) -> InteractionFacts:
    rounds = []
    for voting_round in planned.rounds:
        check, answer = voting_round.multipliers
        rounds.append(
            VotingRoundFacts(
                queries=voting_round.queries,
                threshold=voting_round.threshold,
                selection_multiplier=check,
                multiplier=answer,
            )
        )
    return InteractionFacts(rounds=tuple(rounds), confidence=planned.confidence)


def _partition(plan: Plan) -> str:
    """Describes how private records came to teachers."""
    planned = plan.as_plan_of(PatePlan)
    if not planned.reads_training_records:
        return "declared: the votes are of teachers that were trained elsewhere, on disjoint parts of the records"
    return (
        f"a keyed hash of the {planned.partition_by}, its key kept in private/, deals each {plan.guarantee.unit} "
        "to one teacher, which learns from its own part and nothing else"
    )


def _rows(facts: PateFacts, noise: str) -> tuple[tuple[str, str], ...]:
    voting = facts.voting
    rows = [
        ("teachers", f"{voting.teachers:,}: {voting.partition}"),
        ("answers", f"{voting.aggregator}, one of {voting.classes:,} classes, {noise} on each count"),
    ]
    if voting.threshold is not None and voting.selection_multiplier is not None:
        check = (
            f"where the largest count reaches {voting.threshold:g}, gaussian noise of {voting.selection_multiplier:g}"
        )
        rows.append(("which", f"{check} votes on it"))
    if voting.interaction is not None:
        interaction = voting.interaction
        later = [
            f"by {part.threshold:g} (noise of {part.selection_multiplier:g} on the check, "
            f"{part.multiplier:g} on each count)"
            for part in interaction.rounds[1:]
        ]
        rows.append(
            (
                "student",
                f"from the second of {len(interaction.rounds)} rounds on, where votes exceed what it expects "
                f"{', then '.join(dict.fromkeys(later))}; its own label stands above a confidence of "
                f"{interaction.confidence:g}",
            )
        )
    rows.append(("queries", f"{voting.queries_charged:,}, of {voting.queries_planned:,} at most"))
    rows.append(("answered", f"{voting.answers_charged:,}, of {voting.answers_planned:,} at most"))
    if voting.filter is not None:
        rows.append(("charged", "all that the plan allowed, whatever was answered: the claim is the worst case"))
    return tuple(rows)


def count_answered(charges: Sequence[Charge]) -> list[tuple[int, int]]:
    """Counts (queries put, answers given) after each block of queries, in ledger order, losses in a crash included."""
    points = [(0, 0)]
    for index, charge in enumerate(charges, 1):
        if isinstance(charge.event, NoisyMax) or index == len(charges):
            point = votes.count_queries(charges[:index]), votes.count_charges(charges[:index], NoisyMax)
            points += [point] if point != points[-1] else []
    return points


def draw_answered(axes: Axes, points: Sequence[tuple[int, int]]) -> None:
    """Draws the share of the queries put that was answered, against the number put."""
    parts = [(queries, answers / queries) for queries, answers in points if queries]
    axes.plot(parts, dots=True)
    axes.write(f"{points[-1][1]:,} of {points[-1][0]:,}", parts[-1], anchor="end", shift=(-4, -7))
    axes.set("queries", "answered, of those put", (0, None), (0, 1.1))


PART = PateCertificate()
