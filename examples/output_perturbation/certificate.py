"""What a certificate says of a noisy minimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from dprecipe.contract.certificate import CertificatePart, Section
from dprecipe.contract.facts import MechanismFacts, PrivacyUnit
from dprecipe.contract.plan import Plan
from dprecipe.language.base import NonNegativeFloat, PositiveFloat, PositiveInt
from output_perturbation.plan import OutputPerturbationPlan


class OutputPerturbationFacts(MechanismFacts):
    """The convex problem whose noisy minimum was released."""

    kind: Literal["output_perturbation"]
    feature_norm: PositiveFloat
    l2: NonNegativeFloat
    lipschitz: PositiveFloat
    smoothness: PositiveFloat
    descent_steps: PositiveInt
    sensitivity: PositiveFloat
    noise_scale: PositiveFloat


class Part(CertificatePart[OutputPerturbationFacts, None, None]):
    """The mechanism's part of a certificate."""

    facts = OutputPerturbationFacts
    progress = ("release", "releases")
    hides_iterates = True

    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        own = plan.as_plan_of(OutputPerturbationPlan)
        moved = f"features are clipped to {own.feature_norm:g}, so that one record moves the minimum by at most"
        return PrivacyUnit(max_records=1, enforced_by=f"{moved} {own.sensitivity:g}")

    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        return {
            "gradient_bound": "the norm of a record's gradient is at most L",
            "minimum": "the descent ends where the gradient is as small as was proved",
            "sensitivity": "two neighbouring data sets end no farther apart than stated",
            "noise_scale": "the noise has the planned scale, and no direction",
        }

    def describe_noise(self, facts: OutputPerturbationFacts) -> str:
        return f"noise of density ∝ exp(-‖b‖ / {facts.noise_scale:g})"

    def list_sections(self, facts: OutputPerturbationFacts) -> Sequence[Section]:
        rows = tuple((name.replace("_", " "), str(value)) for name, value in facts if name != "kind")
        return [Section("The minimum", rows)]


PART = Part()
