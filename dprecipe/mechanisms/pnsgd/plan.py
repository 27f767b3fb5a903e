"""The plan of projected noisy SGD: the problem, its proven constants, and the stages of its descent.

Guarantees: the one event of the run is computed from the same stages and constants that the run uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Literal

from dprecipe.contract.mechanism import MechanismPlan
from dprecipe.contract.plan import Length, UsualPlan
from dprecipe.mechanisms.pnsgd.constants import Proven, round_above, round_below, step_contraction
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.schema import BallConstraint, BoxConstraint, Constraint, IntervalConstraint
from dprecipe.noisy_sum.sampling import shortest_number
from dprecipe.privacy.events import Charge


@dataclass(frozen=True, slots=True)
class BoundValue:
    """ε by one bound, rounded up; `None`: infinite."""

    name: str
    epsilon: float | None


@dataclass(frozen=True, slots=True)
class NoisePhase:
    """Steps with one noise, whatever their learning rates."""

    steps: int
    multiplier: float
    """Scale of the noise over the Lipschitz constant."""


@dataclass(frozen=True, slots=True)
class PlannedDescent:
    """The problem, and how it is solved."""

    neighbouring: str
    family: str
    size: int
    """Number of records."""
    batch_size: int
    order: Literal["sequential", "permuted"]
    stop: Literal["last", "random"]
    proven: Proven

    def event(self, stages: Sequence[Stage]) -> ProjectedDescent:
        """Returns the event of a run of these stages; every number is rounded to the safe side."""
        proven = self.proven
        gradient_sensitivity, diameter, rows = Fraction(proven.gradient_sensitivity), Fraction(proven.diameter), []
        for stage in stages:
            rate, scale = Fraction(stage.learning_rate), Fraction(stage.noise_scale)
            rows.append(
                (
                    stage.steps,
                    round_below(scale * self.batch_size / gradient_sensitivity),
                    step_contraction(stage.learning_rate, proven),
                    round_above(diameter / (rate * scale)),
                )
            )
        return ProjectedDescent(
            neighbouring=self.neighbouring,
            family=self.family,
            size=self.size,
            batch=self.batch_size,
            order=self.order,
            stop=self.stop,
            stages=tuple(rows),
        )


@dataclass(frozen=True)
class PnsgdPlan(UsualPlan):
    """The plan of a run of projected noisy SGD."""

    kind: ClassVar[str] = "pnsgd"
    descent: PlannedDescent
    stages: tuple[Stage, ...]
    phase_steps: tuple[int, ...] | None
    """Numbers of steps of all phases of noise but the last; `None`: the recipe has one noise."""
    constraint: Constraint
    feature_norm: float | None
    """Norm that features are clipped to; `None`: the model reads no features."""
    bias: bool
    l2: float
    bounds: tuple[BoundValue, ...]
    winner: str
    """Name of the bound that is claimed."""
    checkpoint: Literal["encrypted", "none", "plain"]
    private_log: bool

    @cached_property
    def event(self) -> ProjectedDescent:
        """The event of the run."""
        return self.descent.event(self.stages)

    @property
    def events(self) -> tuple[Charge, ...]:
        return (Charge(self.event, 1),)

    @property
    def indivisible(self) -> tuple[Charge, ...]:
        return self.events

    @property
    def hides_duration(self) -> bool:
        return self.descent.stop == "random"

    @property
    def length(self) -> Length:
        return Length(self.event.steps, self.event.batches)

    @property
    def scheme(self) -> str:
        return self.descent.order

    @property
    def expected_batch(self) -> float:
        return float(self.descent.batch_size)

    @property
    def passes(self) -> float:
        """Largest number of passes over all records."""
        return self.event.steps / self.event.batches

    @property
    def contraction(self) -> float:
        """Largest Lipschitz constant of a step."""
        return max(shrink for _, _, shrink, _ in self.event.stages)

    @property
    def noise_phases(self) -> tuple[NoisePhase, ...]:
        """Each noise of the run, in order."""
        starts = [0]
        for steps in self.phase_steps or ():
            starts.append(starts[-1] + steps)
        ends = [*starts[1:], self.event.steps]
        return tuple(NoisePhase(end - start, self._multiplier(start)) for start, end in zip(starts, ends, strict=True))

    def _multiplier(self, step: int) -> float:
        """Returns the noise of a step over the Lipschitz constant, as the recipe states it or as it was solved."""
        lipschitz = self.descent.proven.lipschitz
        ends = accumulate(stage.steps for stage in self.stages)
        scale = next(stage.noise_scale for stage, end in zip(self.stages, ends, strict=True) if step < end)
        return shortest_number(scale / lipschitz, lambda written: written * lipschitz == scale)

    def deviation(self, stage: Stage) -> float:
        """Returns the standard deviation of the noise on a step's mean gradient."""
        return stage.noise_scale * (math.sqrt(2) if self.descent.family == "laplace" else 1.0)

    def describe(self) -> list[tuple[str, str]]:
        descent, proven, stages, constraint = self.descent, self.descent.proven, self.stages, self.constraint
        size = _describe_set(constraint)
        stop = "the last iterate is released" if descent.stop == "last" else "stops after 1 to all, drawn at random"
        rows = [
            ("steps", f"{self.event.steps:,}, {self.passes:.4g} passes of {self.event.batches:,}; {stop}"),
            ("batch", f"{descent.batch_size:,} of {descent.size:,} records, {descent.order} order"),
            ("set", f"{size}, D = {proven.diameter:g}, {proven.parameters:,} parameters"),
            (
                "constants",
                f"L = {proven.lipschitz:.6g}, Δ = {proven.gradient_sensitivity:.6g}, β = {proven.smoothness:.6g}, "
                f"ρ = {proven.strong_convexity:.6g}, contraction {self.contraction:.6g}",
            ),
            ("learning rate", _range([stage.learning_rate for stage in stages])),
            (
                "noise",
                f"{descent.family}, scale {_range([stage.noise_scale for stage in stages])} on the mean "
                f"gradient ({_range([stage.noise_scale / proven.lipschitz for stage in stages])} × L)",
            ),
        ]
        for bound in self.bounds:
            claimed = ", the smallest" if bound.name == self.winner else ""
            rows.append((f"by {bound.name}", "none" if bound.epsilon is None else f"ε = {bound.epsilon:g}{claimed}"))
        return rows


def _describe_set(constraint: Constraint) -> str:
    match constraint:
        case BallConstraint(radius=radius, centre=centre):
            around = (
                "" if centre is None else " around a centre" if isinstance(centre, tuple) else f" around {centre:g}"
            )
            return f"ball of radius {radius:g}{around}"
        case BoxConstraint(bound=bound):
            return f"box of bound {bound:g}"
        case IntervalConstraint(low=float(low), high=float(high)):
            return f"intervals from {low:g} to {high:g}"
        case IntervalConstraint():
            return "intervals, one for each parameter"
    return f"simplex of total {constraint.total:g}"


def _range(values: Sequence[float]) -> str:
    first, last = f"{values[0]:.6g}", f"{values[-1]:.6g}"
    return first if min(values) == max(values) else f"{first} to {last} in {len(values):,} stages"


PLAN: type[MechanismPlan] = PnsgdPlan
