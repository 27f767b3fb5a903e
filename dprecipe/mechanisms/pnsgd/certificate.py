"""The part of a certificate for a last-iterate release: one event, however many steps and attempts the run took.

The event is that of the one transcript that is released. An interrupted attempt released nothing, so an attempt that
continues it, or starts over, is not charged again. This holds if the interruption did not depend on the records: an
assumption, which the certificate states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dprecipe.contract.certificate import HIDDEN, NOISE_SCALE, CertificatePart, compare_number
from dprecipe.contract.drawing import SERIES, Axes, Figure
from dprecipe.contract.facts import (
    AggregationFacts,
    NoiseFacts,
    NoisyFacts,
    PhaseFacts,
    PrivacyUnit,
    Probability,
    Word,
)
from dprecipe.contract.plan import Plan
from dprecipe.language.base import Block, NonNegativeFloat, PositiveFloat, PositiveInt
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan
from dprecipe.mechanisms.pnsgd.schema import Constraint
from dprecipe.privacy import accountants, rounding, whole_runs
from dprecipe.privacy.events import MAX_ROWS, Charge, Event

CHECKS = {
    **NOISE_SCALE,
    "gradient_bound": "the norm of a record's gradient is at most L, and the change of a record changes it by at most "
    "Δ, even if features and targets exceed their declared bounds",
    "smoothness": "between two points of the set, a gradient changes by at most β times their distance",
    "strong_convexity": "between two points of the set, a gradient rises by at least ρ times their distance",
    "contraction": "a step without noise leaves two points at most M times their distance apart",
    "projection": "a point outside the set is moved to the nearest point of the set; a point of the set stays",
    "batch_gradient": "a step follows the mean of its records' gradients, and a short batch keeps its divisor",
}
BOUNDS = {
    "no_amplification": "upper bound: as if every iterate were published",
    "contraction": "upper bound: each later step multiplies δ by one factor, Asoodeh, Diaz and Calmon 2020",
    "nonlinear": "upper bound: each later step multiplies δ by a factor that falls with δ",
    "iteration": "upper bound: Gaussian amplification by iteration, Bok, Su and Altschuler 2024",
    "hybrid": "upper bound: amplification by iteration, then nonlinear contraction",
}
MIN_SHOWN = 1e-30
"""Smallest δ that is drawn."""


class StageFacts(Block):
    """Steps of a last-iterate release with one learning rate and one noise."""

    steps: PositiveInt
    learning_rate: PositiveFloat
    noise_scale: PositiveFloat = Field(description="σ: of the noise on the mean gradient, not relative")
    noise_multiplier: PositiveFloat = Field(description="`noise_scale` over the Lipschitz constant")


class BoundFacts(Block):
    """ε of the run by one bound, at the claim's δ, without paid steps of preprocessing."""

    name: Word
    epsilon: NonNegativeFloat | None = Field(description="null: infinite")


class PositionBound(Block):
    """The guarantee of the record at one position in the file: ε at the claim's δ, and δ at its ε."""

    position: PositiveInt
    epsilon: NonNegativeFloat
    delta: Probability


class ProjectionFacts(Block):
    """The convex problem whose last iterate was released, and ε by each bound."""

    constraint: Constraint
    diameter: PositiveFloat = Field(description="D, of the set")
    largest_norm: PositiveFloat = Field(description="L2 norm of all parameters, at most")
    parameters: PositiveInt
    feature_norm: PositiveFloat | None = Field(description="R, by clipping; null: the model reads no features")
    l2: NonNegativeFloat
    lipschitz: PositiveFloat = Field(description="L, of a record's loss without its regulariser")
    gradient_sensitivity: PositiveFloat = Field(description="Δ, between the gradients of two neighbouring records")
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
    winner: Word = Field(description="the smallest bound; of equal ones the simplest")


class PnsgdFacts(NoisyFacts):
    """Projected noisy steps; only the last iterate was released."""

    kind: Literal["pnsgd"]
    projection: ProjectionFacts
    by_position: Annotated[tuple[PositionBound, ...], Field(max_length=1000)] = Field(
        (), description="for runs in the file's order; the claim is that of the worst position"
    )


@dataclass(frozen=True, slots=True)
class LastIterateNumbers:
    """ε by each bound of a last-iterate release, the smallest bound, and the guarantee by position."""

    bounds: tuple[BoundFacts, ...]
    winner: str
    by_position: tuple[PositionBound, ...]


class PnsgdCertificate(CertificatePart[PnsgdFacts, LastIterateNumbers, None]):
    """The part of a certificate of last-iterate releases."""

    facts = PnsgdFacts
    hides_iterates = True
    bounds = BOUNDS
    audit_tests = frozenset(
        {
            *("claimed_epsilon", "event_facts", "event_stages", "gradient_norm", "gradient_distance", "smoothness"),
            *("strong_convexity", "set_norm", "set_diameter", "step_move", "contraction", "projection"),
            *("steps_replayed", "iterates_norm", "records_read", "steps_made", "ledger", "files"),
            *("noise_scale", "noise_distribution"),
        }
    )

    def describe_mechanism(
        self, plan: Plan, charges: Sequence[Charge], numbers: LastIterateNumbers | None
    ) -> PnsgdFacts:
        if numbers is None:
            raise TypeError("a certificate of a last-iterate release states its bounds, and none are given")
        own = plan.as_plan_of(PnsgdPlan)
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
                of="sum of the gradients of a batch's records, divided by the public batch size even if the batch is "
                "short",
                divisor=own.expected_batch,
            ),
            projection=_projection(own, numbers),
            by_position=numbers.by_position,
        )

    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        own = plan.as_plan_of(PnsgdPlan)
        norm, descent = own.feature_norm, own.descent
        clipped = "targets are clipped to their range" if norm is None else f"features are clipped to the norm {norm:g}"
        return PrivacyUnit(
            max_records=1,
            enforced_by=(
                f"{clipped}, so the change of one record changes its gradient by at most "
                f"{descent.proven.gradient_sensitivity:g}, divided by the batch size {descent.batch_size:,}; each "
                f"record is in one batch of a pass, and steps are projected on a set of diameter "
                f"{descent.proven.diameter:g}"
            ),
        )

    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        return CHECKS

    def list_unprotected(self, plan: Plan) -> Sequence[str]:
        lines = list(HIDDEN)
        if plan.as_plan_of(PnsgdPlan).descent.order == "sequential":
            lines.append("a record's position in the file, which decides how well it is protected")
        return lines

    def qualify_claim(self, plan: Plan, numbers: LastIterateNumbers | None) -> str:
        descent, sentences = plan.as_plan_of(PnsgdPlan).descent, []
        if descent.order == "permuted":
            sentences.append(
                "The order of the records was drawn at random, independently of the data. The guarantee is an average "
                "over that order, and is the same for every record."
            )
        else:
            sentences.append(
                "The records were used in the order of the file; the guarantee is that of the position where it is "
                "weakest."
            )
        if descent.stop == "random":
            sentences.append(
                f"The number of steps was drawn at random from 1 to {plan.length.steps:,}, and the guarantee is an "
                "average over it."
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
        reads = "every use of the training records" if not plan.stages else "every use of them in training"
        text = f"{reads} is a step of one event, and only its last iterate is released"
        if plan.as_plan_of(PnsgdPlan).private_log:
            text += "; the loss on them after each pass stays in private/, and no choice depended on it"
        return text

    def compute_numbers(
        self, plan: Plan, charges: Sequence[Charge], epsilon: float, published: None
    ) -> LastIterateNumbers:
        """Computes the bounds for the run among `charges`, all rounded up; `epsilon` is the claimed one.

        The list by position is only for one run in the file's order and nothing beside it: for several charges it would
        not hold.
        """
        delta, relation = plan.budget.delta, plan.budget.neighbouring
        rows = whole_runs.by_position(charges, delta, relation, epsilon)
        charges = _select_runs(charges)
        bounds = whole_runs.epsilon_by_bound(charges, delta, relation)
        return LastIterateNumbers(
            tuple(
                BoundFacts(name=name, epsilon=rounding.round_up(e) if e < math.inf else None)
                for name, e in bounds.items()
            ),
            accountants.epsilon_answer(charges, delta, relation, "pld").accountant,
            tuple(PositionBound(position=position, epsilon=e, delta=d) for position, e, d in rows),
        )

    def read_numbers(self, facts: PnsgdFacts) -> LastIterateNumbers:
        return LastIterateNumbers(facts.projection.bounds, facts.projection.winner, facts.by_position)

    def check_numbers(self, facts: PnsgdFacts, plan: Plan, charges: Sequence[Charge], epsilon: float) -> list[str]:
        problem, rows = facts.projection, facts.by_position
        again = self.compute_numbers(plan, charges, epsilon, None)
        lines = []
        ours, stated = _read_bounds(again.bounds), _read_bounds(problem.bounds)
        if stated.get(problem.winner) != min(stated.values(), default=None):
            lines.append(f"mechanism.projection.winner: {problem.winner!a} is not the smallest bound")
        if not stated.keys() <= ours.keys() or len(stated) != len(problem.bounds):
            lines.append("mechanism.projection.bounds: not bounds for this noise")
        else:
            for index, (name, epsilon) in enumerate(stated.items()):
                lines += compare_number(f"mechanism.projection.bounds.{index}.epsilon", epsilon, ours[name])
        if [row.position for row in rows] != [row.position for row in again.by_position]:
            return [*lines, "mechanism.by_position: not the positions that must be listed"]
        for index, (row, ours_at) in enumerate(zip(rows, again.by_position, strict=True)):
            where = f"mechanism.by_position.{index}"
            lines += compare_number(f"{where}.epsilon", row.epsilon, ours_at.epsilon)
            lines += compare_number(f"{where}.delta", row.delta, ours_at.delta)
        return lines

    def count_steps(self, event: Event) -> int:
        return event.steps

    def describe_noise(self, facts: PnsgdFacts) -> str:
        return f"{facts.noise.family} noise of {facts.multipliers} × L on the mean gradient"

    def format_steps(self, facts: PnsgdFacts, steps: int) -> str:
        return f"1 to {steps:,}" if facts.projection.stop == "random" else f"{steps:,}"

    def list_figures(
        self, plan: Plan, facts: PnsgdFacts, charges: Sequence[Charge], epsilon: float, profile: Sequence[float]
    ) -> Sequence[Figure]:
        """Lists figures of the guarantee by position and by bound; none of the run, whose iterates are not released."""
        results = []
        if facts.by_position:
            results.append(
                Figure(
                    "positions",
                    "Each position in the file has a guarantee; the claim is the weakest.",
                    lambda axes: draw_positions(axes, facts.by_position, epsilon),
                    frozenset({"position of the record", "ε"}),
                )
            )
        if profile and not plan.stages:  # beside paid steps, the claim is on none of these curves
            results.append(
                Figure(
                    "bounds",
                    "Each bound holds; the claim is the smallest at the claimed δ.",
                    lambda axes: draw_bounds(
                        axes, bounds_over_epsilon(plan, charges, profile), (epsilon, plan.budget.delta)
                    ),
                    frozenset({"ε", "δ", *(name.replace("_", " ") for name in BOUNDS)}),
                )
            )
        return results


def _read_bounds(bounds: Sequence[BoundFacts]) -> dict[str, float]:
    return {bound.name: math.inf if bound.epsilon is None else bound.epsilon for bound in bounds}


def _select_runs(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """Returns the charges without those of paid steps."""
    return tuple(charge for charge in charges if isinstance(charge.event, ProjectedDescent))


def _projection(plan: PnsgdPlan, numbers: LastIterateNumbers) -> ProjectionFacts:
    """Returns the facts of the problem, from the plan, with the bounds, from the events."""
    descent, proven = plan.descent, plan.descent.proven
    return ProjectionFacts(
        constraint=plan.constraint,
        diameter=proven.diameter,
        largest_norm=proven.largest_norm,
        parameters=proven.parameters,
        feature_norm=plan.feature_norm,
        l2=plan.l2,
        lipschitz=proven.lipschitz,
        gradient_sensitivity=proven.gradient_sensitivity,
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
    """Returns the noise of each phase; None if the recipe has one."""
    if plan.phase_steps is None:
        return None
    family = plan.descent.family
    return tuple(
        PhaseFacts(steps=p.steps, family=family, shape=None, multiplier=p.multiplier) for p in plan.noise_phases
    )


def bounds_over_epsilon(
    plan: Plan, charges: Sequence[Charge], epsilons: Sequence[float]
) -> dict[str, list[tuple[float, float]]]:
    """Returns (ε, δ) of last-iterate releases by each bound."""
    columns = [whole_runs.delta_by_bound(charges, epsilon, plan.budget.neighbouring) for epsilon in epsilons]
    return {name: [(e, column[name]) for e, column in zip(epsilons, columns, strict=True)] for name in columns[0]}


def draw_positions(axes: Axes, rows: Sequence[PositionBound], epsilon: float) -> None:
    """Draws ε at the claim's δ against the record's position in the file."""
    axes.draw_level(epsilon)
    axes.plot((row.position, row.epsilon) for row in rows)
    axes.set("position of the record", "ε", y_limits=(0, epsilon * 1.08))


def draw_bounds(axes: Axes, curves: Mapping[str, Sequence[tuple[float, float]]], claimed: tuple[float, float]) -> None:
    """Draws δ(ε) by each bound on a logarithmic scale, with the claimed point."""
    for (name, points), color in zip(curves.items(), SERIES, strict=False):
        shown = [(e, d) for e, d in points if d > MIN_SHOWN]
        if shown:
            axes.plot(shown, color, dashed=name == "hybrid", label=name.replace("_", " "))
    axes.mark(*claimed)
    axes.add_legend()
    axes.set("ε", "δ", log_y=True)


PART = PnsgdCertificate()
