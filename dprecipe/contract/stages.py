"""Stages before a mechanism's own steps: paid steps of preprocessing, each with its noise solved.

A step's price is a noise multiplier, or a share of ε: the noise at which the step alone costs that share at the
budget's δ. Each of them composes with what the mechanism releases; the mechanism's noise is solved for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dprecipe.data.paid.schema import PAID, PaidStep
from dprecipe.data.schema import Data
from dprecipe.faults import Finding, PlanRefused
from dprecipe.language.blocks import Budget
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Event, run_lengths
from dprecipe.privacy.rounding import round_down, round_up

if TYPE_CHECKING:
    from dprecipe.contract.mechanism import Facts

MAX_NOISE = 1e6
"""Largest noise multiplier of a paid step: more would drown what it releases, and exceed the lattice of its noise."""
MIN_NOISE = 0.2
"""Smallest noise multiplier that is solved for: less noise protects almost nothing."""
TRAINING = "training"
"""The name of the mechanism's own part, beside the kinds of stages."""


@dataclass(frozen=True, slots=True)
class PaidStage:
    """A paid step of preprocessing."""

    step: int
    """Its number in `data.preprocess`."""
    kind: str
    """Its key in the recipe."""
    noise_multiplier: float
    charges: tuple[Charge, ...]

    @property
    def path(self) -> str:
        """Its place in the recipe."""
        return f"data.preprocess.{self.step}.{self.kind}"

    def to_json(self, places: Mapping[Event, int]) -> dict[str, Any]:
        """Returns it as JSON types; `places` maps each event to its place in the plan's list."""
        events = [{"count": charge.count, "event": places[charge.event]} for charge in self.charges]
        return {"step": self.step, "kind": self.kind, "noise_multiplier": self.noise_multiplier, "events": events}


@dataclass(frozen=True, slots=True)
class CostAlone:
    """The cost that one part of a run would have alone, at the budget's δ. Together the parts cost less than the
    sum."""

    kind: str
    """A stage's kind, or `TRAINING`."""
    step: int | None
    """The number of the stage's step in `data.preprocess`."""
    epsilon: float
    """Upper bound, rounded up."""

    @property
    def name(self) -> str:
        """Its name in a table."""
        return self.kind if self.step is None else f"preprocess.{self.step}.{self.kind}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "step": self.step, "epsilon": self.epsilon}


def list_paid_steps(data: Data) -> tuple[tuple[int, PaidStep], ...]:
    """Returns the paid steps of `data.preprocess`, each with its number in the list, in order."""
    operations = ((index, step.operation) for index, step in enumerate(data.preprocess))
    return tuple((index, operation) for index, operation in operations if isinstance(operation, PaidStep))


def kind_of(step: PaidStep) -> str:
    """Returns the step's key in a recipe."""
    return next(kind for kind, block in PAID.items() if type(step) is block)


def path_of(index: int, step: PaidStep) -> str:
    """Returns the dotted path of step `index`."""
    return f"data.preprocess.{index}.{kind_of(step)}"


def charge_step(data: Data, index: int, noise_multiplier: float, relation: Neighbouring) -> tuple[Charge, ...]:
    """Returns the charges of step `index`; imports numpy, which recipes without a paid step don't need."""
    from dprecipe.data.paid.stage import plan_charges

    return plan_charges(data, index, noise_multiplier, relation)


def list_charges(stages: tuple[PaidStage, ...]) -> tuple[Charge, ...]:
    """Returns the charges of the stages, in order."""
    return run_lengths(charge for stage in stages for charge in stage.charges)


def solve_stages(data: Data, budget: Budget, noise: Mapping[int, float]) -> tuple[PaidStage, ...]:
    """Returns the stages of a recipe, in order. `noise` holds multipliers that are solved already, by the number of the
    step; a step whose noise is `auto` and not among them is left out.

    Guarantees: a step with a share costs at most that share of ε alone, by the budget's accountant.

    Raises:
        PlanRefused: no noise meets a share (P126).
    """
    relation = Neighbouring(budget.neighbouring)
    stages = []
    for index, step in list_paid_steps(data):
        multiplier = noise.get(index)
        if multiplier is None:
            if step.noise_multiplier == "auto":
                continue
            multiplier = _multiplier_of_share(data, budget, index) if step.share is not None else step.noise_multiplier
        if multiplier is None:
            raise ValueError(f"step {index} of data.preprocess has no price")
        charges = charge_step(data, index, float(multiplier), relation)
        stages.append(PaidStage(index, kind_of(step), float(multiplier), charges))
    return tuple(stages)


def _multiplier_of_share(data: Data, budget: Budget, index: int) -> float:
    from dprecipe.privacy import calibrate

    step = dict(list_paid_steps(data))[index]
    if step.share is None or budget.epsilon == "auto":
        raise ValueError(f"step {index} of data.preprocess has no share of ε")
    relation = Neighbouring(budget.neighbouring)
    epsilon = step.share * round_down(budget.epsilon)
    try:
        multiplier = calibrate.noise_multiplier(
            lambda sigma: charge_step(data, index, sigma, relation), epsilon, budget.delta, relation, budget.accountant
        )
    except calibrate.CalibrationError as error:
        raise PlanRefused([refuse_price(error.reason, path_of(index, step), f"its share, ε = {epsilon:g}")]) from None
    if multiplier > MAX_NOISE:
        raise PlanRefused([refuse_price("too_tight", path_of(index, step), f"its share, ε = {epsilon:g}")])
    return multiplier


def refuse_price(reason: str, path: str, budget: str) -> Finding:
    """Returns the finding for a stage whose noise can't be solved; `reason` is that of a `CalibrationError`."""
    if reason == "too_tight":
        return Finding(
            "P126",
            f"this step's results would drown in the noise that keeps {budget}",
            "raise its share or budget.epsilon; for dp_categories and dp_vocabulary, lower leak far below budget.delta",
            path,
        )
    return Finding("P126", f"{budget} is kept with hardly any noise", "lower budget.epsilon or budget.delta", path)


def find_overspent_stages(facts: Facts) -> Finding | None:
    """Returns the finding for stages that alone cost more than the budget; None if they leave something or there are
    none."""
    budget, charges = facts.budget, facts.stage_charges
    if facts.cap is None or not charges:
        return None
    from dprecipe.privacy import accountants

    relation = Neighbouring(budget.neighbouring)
    epsilon = round_up(accountants.epsilon(charges, budget.delta, relation, budget.accountant))
    if epsilon <= facts.cap:
        return None
    return Finding(
        "P126",
        f"the paid steps alone spend ε = {epsilon:.4g} of {facts.cap:g} at δ = {budget.delta:g}",
        "raise their noise_multiplier, lower their shares, or raise budget.epsilon",
        "data.preprocess",
    )
