"""What a certificate says of a run whose iterates are hidden: one event, whatever happens between its first step and
its last.

The events are those of the transcript that is finally released. An attempt that was cut short released nothing, so one
that goes on with it, or begins anew, is charged once, as long as what ended the first had nothing to do with the
records: that is an assumption, and the certificate says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dprecipe.language.base import Block, NonNegativeFloat, PositiveFloat, PositiveInt
from dprecipe.mechanisms.certificate import NOISE_SCALE, CertificatePart, compare_number
from dprecipe.mechanisms.drawing import CAP, MARK, SERIES, Figure
from dprecipe.mechanisms.facts import (
    AggregationFacts,
    BudgetFacts,
    NoiseFacts,
    NoisyFacts,
    PhaseFacts,
    PrivacyUnit,
    Probability,
    Word,
)
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan
from dprecipe.mechanisms.pnsgd.schema import Constraint
from dprecipe.privacy import accountants, rounding, whole_runs
from dprecipe.privacy.events import MAX_ROWS, Charge, Event

CHECKS = {
    **NOISE_SCALE,
    "gradient_bound": "no record's gradient is longer than L, and none moves it farther than Δ, however far its "
    "features and its target lie outside their bounds",
    "smoothness": "between two points of the set a gradient moves by at most β times their distance",
    "strong_convexity": "between two points of the set a gradient rises by at least ρ times their distance",
    "contraction": "a step without its noise brings two points no farther apart than M times their distance",
    "projection": "every point is moved to the nearest one of the set, and those of the set stay",
    "batch_gradient": "a step follows the mean of its records' gradients, and a short batch keeps its divisor",
}
BOUNDS = {
    "no_amplification": "upper bound: as if every iterate were seen",
    "contraction": "upper bound: each later step shrinks δ by the same factor, Asoodeh, Diaz and Calmon 2020",
    "nonlinear": "upper bound: each later step shrinks δ, the more the smaller it is",
    "iteration": "upper bound: Gaussian amplification by iteration, Bok, Su and Altschuler 2024",
    "hybrid": "upper bound: amplification by iteration, then nonlinear contraction",
}
MIN_SHOWN = 1e-30
"""A δ below it is not drawn."""


class StageFacts(Block):
    """A part of a last-iterate release whose steps are alike."""

    steps: PositiveInt
    learning_rate: PositiveFloat
    noise_scale: PositiveFloat = Field(description="absolute, on the mean gradient")
    noise_multiplier: PositiveFloat = Field(description="`noise_scale` over the Lipschitz constant")


class BoundFacts(Block):
    """What one bound gives for the events, at the claim's δ."""

    name: Word
    epsilon: NonNegativeFloat | None = Field(description="null: it has none")


class PositionBound(Block):
    """What protects the records at one place in the file: ε at the claim's δ, and δ at its ε."""

    position: PositiveInt
    epsilon: NonNegativeFloat
    delta: Probability


class ProjectionFacts(Block):
    """The convex problem whose last iterate was released, and what each bound of it gives."""

    constraint: Constraint
    diameter: PositiveFloat = Field(description="D, of the set")
    largest_norm: PositiveFloat = Field(description="of the parameters together")
    parameters: PositiveInt
    feature_norm: PositiveFloat | None = Field(description="R, by clipping; null: no feature is read")
    l2: NonNegativeFloat
    lipschitz: PositiveFloat = Field(description="L, of a record's loss without its regulariser")
    moved: PositiveFloat = Field(description="Δ, between the gradients of two neighbouring records")
    smoothness: PositiveFloat = Field(description="β")
    strong_convexity: NonNegativeFloat = Field(description="ρ")
    contraction: Probability = Field(description="largest Lipschitz constant of a step")
    order: Literal["sequential", "permuted"]
    stop: Literal["last", "random"]
    batch_size: PositiveInt
    batches: PositiveInt = Field(description="steps of one pass")
    passes: PositiveFloat
    stages: Annotated[tuple[StageFacts, ...], Field(min_length=1, max_length=MAX_ROWS)]
    bounds: Annotated[tuple[BoundFacts, ...], Field(max_length=16)]
    winner: Word = Field(description="the simplest of the least")


class PnsgdFacts(NoisyFacts):
    """Projected noisy steps, of which the last iterate alone was released."""

    kind: Literal["pnsgd"]
    projection: ProjectionFacts
    by_position: Annotated[tuple[PositionBound, ...], Field(max_length=1000)] = Field(
        (), description="of runs through the file's order; the claim is that of the worst place"
    )


@dataclass(frozen=True, slots=True)
class HiddenNumbers:
    """What each bound of last-iterate releases gives, the simplest of the least, and what protects a record at its
    place."""

    bounds: tuple[BoundFacts, ...]
    winner: str
    by_position: tuple[PositionBound, ...]


class PnsgdCertificate(CertificatePart[PnsgdFacts, HiddenNumbers]):
    """The part of a certificate of last-iterate releases."""

    facts = PnsgdFacts
    hides_iterates = True
    bounds = BOUNDS

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: HiddenNumbers | None) -> PnsgdFacts:
        if numbers is None:
            raise TypeError("of a last-iterate release its bounds are stated")
        own = plan.room_as(PnsgdPlan)
        last = own.stages[-1]
        return PnsgdFacts(
            kind="pnsgd",
            noise=NoiseFacts(
                family=own.descent.family,
                multiplier=own.noise_phases[-1].multiplier,
                scale=last.noise_scale,
                standard_deviation=own.deviation(last),
                added_to="the mean gradient of a batch, before it is multiplied by the learning rate",
            ),
            phases=_phases(own),
            aggregation=AggregationFacts(
                of="sum of the gradients of a batch's records, over the public size of a batch, a short one's too",
                divisor=own.expected_batch,
            ),
            projection=_projection(own, numbers),
            by_position=numbers.by_position,
        )

    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        own = plan.room_as(PnsgdPlan)
        norm, descent = own.feature_norm, own.descent
        clipped = "targets are clipped to their range" if norm is None else f"features are clipped to the norm {norm:g}"
        return PrivacyUnit(
            name="record",
            max_records=1,
            enforced_by=(
                f"{clipped}, so that one record's gradient changes by at most {descent.proven.moved:g}, divided by the "
                f"{descent.batch_size:,} of a batch; each record is in one batch of a pass, and steps are projected on "
                f"a set of diameter {descent.proven.diameter:g}"
            ),
        )

    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        return CHECKS

    def list_unprotected(self, plan: Plan) -> Sequence[str]:
        lines = [
            "the model before its last step: the claim holds for those who see none of it, so private/ stays closed "
            "while the run lasts and after it",
            "when an attempt was cut short, if it was: an attempt that goes on with it, or begins anew, is not charged "
            "again, which rests on crashes, and the decision to begin again, not depending on the records",
        ]
        if plan.room_as(PnsgdPlan).descent.order == "sequential":
            lines.append("which place in the file a record has, and so how well it is protected")
        return lines

    def qualify_claim(self, plan: Plan, numbers: HiddenNumbers | None) -> str:
        descent, sentences = plan.room_as(PnsgdPlan).descent, []
        if descent.order == "permuted":
            sentences.append(
                "The records took part in an order drawn at random, whatever they hold; the guarantee is an average "
                "over that order, and the same for every record."
            )
        else:
            sentences.append(
                "The records took part in the order of the file; the guarantee is that of the place where it is "
                "weakest."
            )
        if descent.stop == "random":
            sentences.append(
                f"The number of steps was drawn at random too, from 1 to {plan.length.steps:,}, and the guarantee is "
                "an average over it."
            )
        if numbers is not None and numbers.by_position:
            best = min(numbers.by_position, key=lambda row: (row.epsilon, row.position))
            worst = max(numbers.by_position, key=lambda row: (row.epsilon, -row.position))
            sentences.append(
                f"At this δ, ε is {worst.epsilon!r} for record {worst.position:,} and {best.epsilon!r} for record "
                f"{best.position:,}."
            )
        return "".join(f" {sentence}" for sentence in sentences)

    def describe_training(self, plan: Plan) -> str:
        text = "every use of the training records is a step of one event, of which nothing but the end is released"
        if plan.room_as(PnsgdPlan).private_log:
            text += "; the loss on them after each pass stays in private/ and chose nothing"
        return text

    def compute_numbers(
        self, plan: Plan, charges: Sequence[Charge], epsilon: float, published: object
    ) -> HiddenNumbers:
        """What the bounds of last-iterate releases give for `charges`, all of it rounded up; `epsilon` is the claimed
        one.

        The list by position is of runs through the file's order that are charged once: of more it would not hold.
        """
        delta, relation = plan.budget.delta, plan.budget.neighbouring
        bounds = whole_runs.epsilon_by_bound(charges, delta, relation)
        rows = whole_runs.by_position(charges, delta, relation, epsilon)
        return HiddenNumbers(
            tuple(
                BoundFacts(name=name, epsilon=rounding.round_up(e) if e < math.inf else None)
                for name, e in bounds.items()
            ),
            accountants.epsilon_answer(charges, delta, relation, "pld").accountant,
            tuple(PositionBound(position=position, epsilon=e, delta=d) for position, e, d in rows),
        )

    def read_numbers(self, facts: PnsgdFacts) -> HiddenNumbers:
        return HiddenNumbers(facts.projection.bounds, facts.projection.winner, facts.by_position)

    def check_numbers(self, facts: PnsgdFacts, plan: Plan, charges: Sequence[Charge], epsilon: float) -> list[str]:
        problem, rows = facts.projection, facts.by_position
        again = self.compute_numbers(plan, charges, epsilon, None)
        lines = []
        if problem.winner != again.winner:
            lines.append(f"mechanism.projection.winner: {again.winner} gives the least bound, not {problem.winner}")
        if [bound.name for bound in problem.bounds] != [bound.name for bound in again.bounds]:
            lines.append("mechanism.projection.bounds: not the bounds that there are")
        else:
            for index, (bound, ours) in enumerate(zip(problem.bounds, again.bounds, strict=True)):
                if bound != ours:
                    lines.append(
                        f"mechanism.projection.bounds.{index}.epsilon: {bound.epsilon!r} stated, {ours.epsilon!r} given"
                    )
        if [row.position for row in rows] != [row.position for row in again.by_position]:
            return [*lines, "mechanism.by_position: not the places that are due"]
        for index, (row, ours_at) in enumerate(zip(rows, again.by_position, strict=True)):
            where = f"mechanism.by_position.{index}"
            lines += compare_number(f"{where}.epsilon", row.epsilon, ours_at.epsilon)
            lines += compare_number(f"{where}.delta", row.delta, ours_at.delta)
        return lines

    def count_steps(self, event: Event) -> int:
        return event.steps

    def check_run(self, plan: Plan, facts: PnsgdFacts, budget: BudgetFacts, from_python: bool) -> list[str]:
        lines = []
        if from_python:
            lines.append("provenance.model: of a model that is not the recipe's nothing is proved, and none is trained")
        if budget.stop_reason != "completed":
            lines.append("budget.stop_reason: a last-iterate release that did not come to its end has no release")
        if not budget.events_settled:
            lines.append("budget.events_settled: a last-iterate release is released when its event is settled")
        return lines

    def describe_noise(self, facts: PnsgdFacts) -> str:
        return f"{facts.noise.family} noise of multiplier {facts.multipliers}"

    def format_steps(self, facts: PnsgdFacts, steps: int) -> str:
        return f"1 to {steps:,}" if facts.projection.stop == "random" else f"{steps:,}"

    def list_figures(
        self, plan: Plan, facts: PnsgdFacts, charges: Sequence[Charge], epsilon: float, profile: Sequence[float]
    ) -> Sequence[Figure]:
        """Nothing along the way, but how good the guarantee is."""
        results = []
        if facts.by_position:
            results.append(
                Figure(
                    "positions",
                    "Every place in the file has a guarantee; the claim is the worst.",
                    lambda axes: draw_positions(axes, facts.by_position, epsilon),
                    frozenset({"position of the record", "ε"}),
                )
            )
        if profile:
            results.append(
                Figure(
                    "bounds",
                    "Each bound holds; the least, at the claimed δ, is claimed.",
                    lambda axes: draw_bounds(
                        axes, bounds_over_epsilon(plan, charges, profile), (epsilon, plan.budget.delta)
                    ),
                    frozenset({"ε", "δ", *(name.replace("_", " ") for name in BOUNDS)}),
                )
            )
        return results


def _projection(plan: PnsgdPlan, numbers: HiddenNumbers) -> ProjectionFacts:
    """The problem, from the plan, and the bounds, from the events."""
    descent, proven = plan.descent, plan.descent.proven
    return ProjectionFacts(
        constraint=plan.constraint,
        diameter=proven.diameter,
        largest_norm=proven.largest_norm,
        parameters=proven.parameters,
        feature_norm=plan.feature_norm,
        l2=plan.l2,
        lipschitz=proven.lipschitz,
        moved=proven.moved,
        smoothness=proven.smoothness,
        strong_convexity=proven.strong_convexity,
        contraction=plan.contraction,
        order=descent.order,
        stop=descent.stop,
        batch_size=descent.batch_size,
        batches=plan.length.steps_per_epoch,
        passes=plan.passes,
        stages=tuple(
            StageFacts(
                steps=stage.steps,
                learning_rate=stage.learning_rate,
                noise_scale=stage.noise_scale,
                noise_multiplier=stage.noise_scale / proven.lipschitz,
            )
            for stage in plan.stages
        ),
        bounds=numbers.bounds,
        winner=numbers.winner,
    )


def _phases(plan: PnsgdPlan) -> tuple[PhaseFacts, ...] | None:
    """The noise of each phase, where the recipe has several."""
    if plan.phase_steps is None:
        return None
    family = plan.descent.family
    return tuple(
        PhaseFacts(steps=p.steps, family=family, shape=None, multiplier=p.multiplier) for p in plan.noise_phases
    )


def bounds_over_epsilon(
    plan: Plan, charges: Sequence[Charge], epsilons: Sequence[float]
) -> dict[str, list[tuple[float, float]]]:
    """(ε, δ) of last-iterate releases by each of their bounds."""
    columns = [whole_runs.delta_by_bound(charges, epsilon, plan.budget.neighbouring) for epsilon in epsilons]
    return {name: [(e, column[name]) for e, column in zip(epsilons, columns, strict=True)] for name in columns[0]}


def draw_positions(axes: Any, rows: Sequence[PositionBound], epsilon: float) -> None:
    """ε at the claim's δ against the record's place in the file."""
    axes.axhline(epsilon, color=CAP, linewidth=1.4, linestyle=(0, (5, 3)))
    axes.plot([row.position for row in rows], [row.epsilon for row in rows], color=MARK, linewidth=2)
    axes.set(xlabel="position of the record", ylabel="ε", ylim=(0, epsilon * 1.08))


def draw_bounds(axes: Any, curves: Mapping[str, Sequence[tuple[float, float]]], claimed: tuple[float, float]) -> None:
    """δ(ε) by each bound on a logarithmic scale, with the claimed point."""
    for (name, points), color in zip(curves.items(), SERIES, strict=False):
        shown = [(e, d) for e, d in points if d > MIN_SHOWN]
        dashes = (0, (4, 3)) if name == "hybrid" else "-"
        if shown:
            axes.semilogy(
                *zip(*shown, strict=True), color=color, linewidth=2, linestyle=dashes, label=name.replace("_", " ")
            )
    axes.plot([claimed[0]], [claimed[1]], "o", color=CAP, markersize=7, zorder=5)
    axes.set(xlabel="ε", ylabel="δ")
    axes.legend(frameon=False, fontsize=8)


PART = PnsgdCertificate()
