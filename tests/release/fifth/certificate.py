"""Its part of a certificate: a block, a number, a check, a file and a figure of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from dprecipe.contract.certificate import CertificatePart, Section, compare_number, unit_of
from dprecipe.contract.drawing import Figure
from dprecipe.contract.facts import MechanismFacts, PrivacyUnit
from dprecipe.contract.plan import Plan
from dprecipe.language.base import NonNegativeFloat, PositiveFloat
from dprecipe.privacy import accountants, rounding
from dprecipe.privacy.events import Charge
from fifth.plan import FifthPlan

CHECKS = {"weights_bounded": "one unit moves the weights by at most 1"}
HINT = "hint.txt"


class FifthFacts(MechanismFacts):
    """Noise on the weights."""

    kind: Literal["fifth"]
    deviation: PositiveFloat
    at_half: NonNegativeFloat = Field(description="ε at half the claim's δ")


@dataclass(frozen=True)
class AtHalf:
    epsilon: float


class Part(CertificatePart[FifthFacts, AtHalf, None]):
    facts = FifthFacts

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: AtHalf | None) -> FifthFacts:
        assert isinstance(plan.mechanism_plan, FifthPlan)
        assert numbers is not None
        return FifthFacts(kind="fifth", deviation=plan.mechanism_plan.event.noise_multiplier, at_half=numbers.epsilon)

    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        return unit_of(plan, "a proof that is not given here")

    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        return CHECKS

    def compute_numbers(self, plan: Plan, charges: Sequence[Charge], epsilon: float, published: None) -> AtHalf:
        budget = plan.budget
        result = accountants.epsilon(charges, budget.delta / 2, budget.neighbouring, budget.accountant)
        return AtHalf(rounding.round_up(result))

    def read_numbers(self, facts: FifthFacts) -> AtHalf:
        return AtHalf(facts.at_half)

    def check_numbers(self, facts: FifthFacts, plan: Plan, charges: Sequence[Charge], epsilon: float) -> list[str]:
        again = self.compute_numbers(plan, charges, epsilon, None)
        return compare_number("mechanism.at_half", facts.at_half, again.epsilon)

    def list_companions(self, plan: Plan) -> frozenset[str]:
        return frozenset({HINT})

    def check_companion(self, name: str, content: bytes, plan: Plan, facts: FifthFacts, from_python: bool) -> list[str]:
        return [] if content == b"add noise once\n" else [f"{name}: says something else"]

    def describe_noise(self, facts: FifthFacts) -> str:
        return f"gaussian noise of deviation {facts.deviation:g}"

    def list_sections(self, facts: FifthFacts) -> Sequence[Section]:
        return (Section("Once", (("deviation", f"{facts.deviation:g} <b>"),)),)

    def list_figures(
        self, plan: Plan, facts: FifthFacts, charges: Sequence[Charge], epsilon: float, profile: Sequence[float]
    ) -> Sequence[Figure]:
        return (Figure("once", "Once", lambda axes: axes.set("once", ""), frozenset({"once"})),)


PART = Part()
