"""The cost of these very votes, from noisy values that were published and paid for: a second statement, not the claim.

It says how much these teachers agreed. The claim says what holds for everyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dprecipe.contract.certificate import compare_number
from dprecipe.contract.facts import Rendered
from dprecipe.contract.plan import Plan
from dprecipe.faults import InternalFault
from dprecipe.language.base import Block, NonNegativeFloat, PositiveFloat
from dprecipe.mechanisms.pate.charges import count_charges
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.theory import sanitise
from dprecipe.mechanisms.pate.theory.sanitise import Sanitised, Sanitiser
from dprecipe.privacy import accountants, rounding
from dprecipe.privacy.events import Charge
from dprecipe.privacy.workload import summarise_charges


class DataDependentFacts(Block):
    """The cost of these very votes, from noisy values published and paid for: not a worst case, and not the claim."""

    epsilon: NonNegativeFloat
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(description="the claim's, and twice `failure`")
    sentence: Rendered = ""
    order: Annotated[float, Field(gt=1)] = Field(description="α, the Rényi order of the bound")
    beta: PositiveFloat = Field(description="β of the smooth sensitivity")
    noise_multiplier: PositiveFloat = Field(description="of `noisy_cost`, over the smooth sensitivity")
    scale_multiplier: PositiveFloat = Field(description="of `noisy_log_sensitivity`, over β")
    failure: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        description="chance that the one noise exceeds its allowance, and that the other does"
    )
    noisy_cost: float = Field(description="published: the votes' Rényi cost with noise")
    noisy_log_sensitivity: float = Field(
        description="published: the logarithm of its smooth sensitivity with noise, its allowance added"
    )
    cost: NonNegativeFloat = Field(description="upper bound of the Rényi cost of the votes, from the two")
    worst_case_epsilon: NonNegativeFloat = Field(description="of the claim's events, at the same δ")
    smaller: Literal["worst_case", "data_dependent"] = Field(description="which of the two statements says more")

    @property
    def sanitised(self) -> Sanitised:
        """The noisy values that the run published."""
        return Sanitised(self.noisy_cost, self.noisy_log_sensitivity)


@dataclass(frozen=True, slots=True)
class VotesCost:
    """The conclusions from the published cost of votes: ε, the bound on the Rényi cost, and the worst-case cost of the
    claim's events at the same δ."""

    published: Sanitised
    epsilon: float
    cost: float
    worst_case: float


def compute_cost(plan: Plan, charges: Sequence[Charge], published: Sanitised) -> VotesCost:
    """Computes the cost of the votes from the published numbers and the constants of the plan alone.

    No list of queries costs more than the worst case of all planned queries.

    Raises:
        RunFailed: the plan does not publish what votes cost, or it was not charged.
        ValueError: the plan's constants are out of range.
    """
    if not count_charges(charges, SanitisedCost):
        raise InternalFault("what votes cost was published, and not charged")
    chosen, budget = sanitiser_of(plan), plan.budget
    events = [charge.event for charge in plan.events if isinstance(charge.event, NoisyMax | NoisyThreshold)]
    planned_charges = summarise_charges([Charge(event, plan.length.steps) for event in events], budget.neighbouring)
    max_cost = float(accountants.rdp_curve(planned_charges, [chosen.order])[0])
    result = sanitise.upper_bound(published, chosen, budget.delta, max_cost)
    worst = accountants.epsilon(charges, result.delta, budget.neighbouring, budget.accountant)
    return VotesCost(
        published, rounding.round_up(result.epsilon), rounding.round_up(result.total), rounding.round_up(worst)
    )


def sanitiser_of(plan: Plan) -> Sanitiser:
    """Returns the plan's constants for publishing the cost of votes.

    Raises:
        RunFailed: there are none.
        ValueError: they are out of range.
    """
    chosen = plan.as_plan_of(PatePlan).publication
    if chosen is None:
        raise InternalFault("the plan does not publish what votes cost")
    event = chosen.event
    return Sanitiser(chosen.order, event.beta, event.noise_multiplier, event.scale_multiplier, chosen.failure)


def state_cost(plan: Plan, votes: VotesCost) -> DataDependentFacts:
    """Returns the statement about these very votes.

    Raises:
        RunFailed: the plan publishes none.
    """
    chosen, delta = sanitiser_of(plan), plan.budget.delta
    return DataDependentFacts(
        epsilon=votes.epsilon,
        delta=delta + 2 * chosen.failure,
        sentence=statement_sentence(votes, delta, chosen.failure, plan.guarantee.unit),
        order=chosen.order,
        beta=chosen.smoothness,
        noise_multiplier=chosen.value_multiplier,
        scale_multiplier=chosen.sensitivity_multiplier,
        failure=chosen.failure,
        noisy_cost=votes.published.value,
        noisy_log_sensitivity=votes.published.log_sensitivity,
        cost=votes.cost,
        worst_case_epsilon=votes.worst_case,
        smaller="data_dependent" if votes.epsilon < votes.worst_case else "worst_case",
    )


def statement_sentence(votes: VotesCost, delta: float, failure: float, unit: str) -> str:
    """Returns the data-dependent statement in words."""
    whole = delta + 2 * failure
    smaller = "this statement is" if votes.epsilon < votes.worst_case else "the claim is"
    return (
        "For the records of this run, dealt to its teachers as they were, and for no others: every set of possible "
        f"outcomes is at most exp({votes.epsilon!r}) times as probable, plus {delta!r}, as with one {unit} added to, "
        "removed from or replaced in the part of one teacher; except with a chance of "
        f"{2 * failure!r}, that noise made the published cost too small. "
        f"Counting that chance, (ε = {votes.epsilon!r}, δ = {whole!r}). It says how much these teachers agreed, not "
        f"what holds for everyone: that is the claim. At the same δ the claim's events are worth "
        f"ε = {votes.worst_case!r}: {smaller} the smaller of two sound ones."
    )


def recompute_statement(stated: DataDependentFacts, plan: Plan, charges: Sequence[Charge]) -> list[str]:
    """Returns the stated values that the published cost of votes does not support."""
    if not count_charges(charges, SanitisedCost):
        return ["mechanism.data_dependent: published, and not among the events"]
    recomputed = compute_cost(plan, charges, stated.sanitised)
    path = "mechanism.data_dependent"
    return [
        *compare_number(f"{path}.cost", stated.cost, recomputed.cost),
        *compare_number(f"{path}.epsilon", stated.epsilon, recomputed.epsilon),
        *compare_number(f"{path}.worst_case_epsilon", stated.worst_case_epsilon, recomputed.worst_case),
    ]
