"""What a certificate says of a noisy minimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from dprecipe.language.base import NonNegativeFloat, PositiveFloat, PositiveInt
from dprecipe.mechanisms.certificate import CertificatePart, Section
from dprecipe.mechanisms.facts import BudgetFacts, MechanismFacts, PrivacyUnit
from dprecipe.mechanisms.plan import Plan
from dprecipe.privacy.events import Charge
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


class Part(CertificatePart[OutputPerturbationFacts, None]):
    """The mechanism's part of a certificate."""

    facts = OutputPerturbationFacts
    progress = ("release", "releases")
    hides_iterates = True

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: None) -> OutputPerturbationFacts:
        own, names = plan.room_as(OutputPerturbationPlan), list(OutputPerturbationFacts.model_fields)
        return OutputPerturbationFacts(**{name: getattr(own, name) for name in names})

    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        own = plan.room_as(OutputPerturbationPlan)
        moved = f"features are clipped to {own.feature_norm:g}, so that one record moves the minimum by at most"
        return PrivacyUnit(name="record", max_records=1, enforced_by=f"{moved} {own.sensitivity:g}")

    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        return {
            "gradient_bound": "the norm of a record's gradient is at most L",
            "minimum": "the descent ends where the gradient is as small as was proved",
            "sensitivity": "two neighbouring data sets end no farther apart than stated",
            "noise_scale": "the noise has the planned scale, and no direction",
        }

    def list_unprotected(self, plan: Plan) -> Sequence[str]:
        return [
            "whether and when an attempt was interrupted: starting over is not charged again, as nothing was released"
        ]

    def check_run(
        self, plan: Plan, facts: OutputPerturbationFacts, budget: BudgetFacts, from_python: bool
    ) -> list[str]:
        found = ["provenance.model: nothing is proved of a model from Python"] if from_python else []
        if budget.stop_reason != "completed" or not budget.events_settled:
            found.append("budget.stop_reason: a minimum is released when its event is settled, and not before")
        return found

    def describe_noise(self, facts: OutputPerturbationFacts) -> str:
        return f"noise of density ∝ exp(-‖b‖ / {facts.noise_scale:g})"

    def list_sections(self, facts: OutputPerturbationFacts) -> Sequence[Section]:
        rows = tuple((name.replace("_", " "), str(value)) for name, value in facts if name != "kind")
        return [Section("The minimum", rows)]


PART = Part()
