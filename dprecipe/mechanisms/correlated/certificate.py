"""The part of a certificate about correlated noise: the clipping, the noise, and what a step takes back of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from dprecipe.contract.certificate import CertificatePart, Section, unit_of
from dprecipe.contract.facts import NoisyFacts, PrivacyUnit, Probability
from dprecipe.contract.plan import Plan
from dprecipe.language.base import Block, PositiveFloat, PositiveInt
from dprecipe.mechanisms.correlated.plan import CorrelatedPlan
from dprecipe.noisy_sum import certificate as noisy_sum
from dprecipe.privacy.events import Charge, Event

CHECKS = {
    **noisy_sum.CLIPPED_CHECKS,
    "noise_correlation": "the noise of a step takes back the planned share of the fresh noise of the step before",
}


class CorrelationFacts(Block):
    """The correlation of the noise over steps."""

    form: Literal["previous_step"]
    previous: Probability = Field(description="λ: the share of a step's fresh noise that the next step takes back")
    batches: PositiveInt = Field(description="steps of a pass; a unit takes part in one of them, always the same")
    passes: PositiveInt = Field(description="as planned")
    sensitivity: PositiveFloat = Field(
        description="S, in clip norms: a run of one attempt is a Gaussian mechanism of μ = S over the noise "
        "multiplier (twice that where a unit is replaced)"
    )
    noise_in_iterates: PositiveFloat = Field(
        description="root mean square of the noise in the sum of all steps so far, in clip norms"
    )
    independent_noise: PositiveFloat = Field(
        description="the same of noise that is independent over steps, at the same ε and in the same order"
    )


class CorrelatedFacts(NoisyFacts):
    """Noise on the sum of clipped gradients, correlated over steps. Multiplier and scale of `noise` are those of the
    fresh noise of a step."""

    kind: Literal["correlated"]
    clipping: noisy_sum.ClippingFacts
    correlation: CorrelationFacts


class CorrelatedCertificate(CertificatePart[CorrelatedFacts, None, None]):
    """The part of a certificate about correlated noise."""

    facts = CorrelatedFacts
    audit_tests = noisy_sum.AUDIT_TESTS

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: None) -> CorrelatedFacts:
        planned = plan.as_plan_of(CorrelatedPlan)
        fresh = noisy_sum.noise_facts(planned)
        deviation = planned.noise_deviation(planned.phases[-1]) * math.hypot(1.0, planned.previous)
        return CorrelatedFacts(
            kind="correlated",
            noise=fresh.model_copy(update={"standard_deviation": deviation}),
            clipping=noisy_sum.clipping_facts(planned),
            aggregation=noisy_sum.aggregation_facts(
                plan, planned.expected_batch, noisy_sum.CLIP_BOUNDS[planned.clip.mode]
            ),
            correlation=CorrelationFacts(
                form="previous_step",
                previous=planned.previous,
                batches=planned.cycles[0].batches,
                passes=len(planned.cycles),
                sensitivity=planned.sensitivity,
                noise_in_iterates=planned.noise_in_iterates,
                independent_noise=planned.independent_noise,
            ),
        )

    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        return unit_of(plan, noisy_sum.describe_clipping(plan, plan.as_plan_of(CorrelatedPlan).augmentations))

    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        return CHECKS

    def count_steps(self, event: Event) -> int:
        return event.steps

    def describe_noise(self, facts: CorrelatedFacts) -> str:
        filtered = "" if facts.aggregation.filter is None else ", filtered"
        share = f"{facts.correlation.previous:g} of it taken back in the next step"
        return f"gaussian noise of multiplier {facts.multipliers}, {share}{filtered}"

    def list_sections(self, facts: CorrelatedFacts) -> Sequence[Section]:
        correlation = facts.correlation
        text = (
            "The noise of a step takes back part of the fresh noise of the step before. Each unit takes part once a "
            f"pass, {correlation.batches:,} steps apart; {correlation.passes:,} passes in one attempt are one Gaussian "
            "mechanism of μ = S/m. Each attempt had an order and noise of its own; every pass that began is charged."
        )
        rows = (
            ("share taken back, λ", f"{correlation.previous:g}"),
            ("sensitivity S", f"{correlation.sensitivity:g} clip norms"),
            ("noise in the iterates", f"{correlation.noise_in_iterates:g} clip norms"),
            ("independent noise would leave", f"{correlation.independent_noise:g} clip norms"),
        )
        return (Section("The correlation of noise", rows, text=text), *noisy_sum.list_sections(facts))


PART = CorrelatedCertificate()
