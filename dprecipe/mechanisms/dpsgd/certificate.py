"""DP-SGD's part of a certificate: how gradients were clipped, and the noise on their sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from dprecipe.contract.certificate import CertificatePart, Section, unit_of
from dprecipe.contract.facts import NoiseFacts, NoisyFacts, PhaseFacts, PrivacyUnit, Probability, Word
from dprecipe.contract.plan import Plan
from dprecipe.language.base import Block, PositiveFloat, PositiveInt
from dprecipe.mechanisms.dpsgd.plan import DpsgdPlan, PlannedClip, gradient_multiplier
from dprecipe.noisy_sum import certificate as noisy_sum
from dprecipe.privacy.events import Charge, Event

CHECKS = {
    **noisy_sum.GRADIENT_CHECKS,
    "clipped_sum": "the clipped sum equals that of a loop over single records",
    "clipped_sum_edges": "an empty batch gives zero, a non-finite record adds zero, and a unit stays within the clip "
    "norm",
}
BOUNDS = {
    "flat": "each unit's clipped to the norm",
    "per_layer": "each unit's clipped layer by layer",
    "automatic": "each unit's scaled to less than the norm",
    "adaptive": "each unit's clipped to the norm of the step",
}
"""The bound on a unit's gradient, in words, by clipping mode."""


class CountFacts(Block):
    """The adaptation of the clip norm, by a noisy count that is released together with the sum of gradients."""

    quantile: Probability = Field(description="target share of gradients within the norm")
    learning_rate: PositiveFloat
    noise: PositiveFloat = Field(description="standard deviation of the noise on the count, in units")
    gradient_multiplier: PositiveFloat = Field(
        description="standard deviation of the noise on the gradients over the clip norm, in the last phase"
    )


class ClippingFacts(Block):
    """The clipping, which limits how far one unit can move what is released."""

    norm: PositiveFloat = Field(description="at the first step")
    mode: Word
    norm_kind: Literal["l2", "l1"] = "l2"
    layers: Annotated[tuple[PositiveFloat, ...], Field(max_length=10_000)] | None = Field(
        None, description="the norm of each layer over `norm`; null: one norm, or the same share for each layer"
    )
    groups: Annotated[tuple[PositiveInt, ...], Field(max_length=10_000)] | None = Field(
        None, description="how many layers each group has, where layers are clipped in groups"
    )
    noise: Annotated[tuple[PositiveFloat, ...], Field(max_length=10_000)] | None = Field(
        None,
        description="noise multiplier of each layer or group over its own norm, in the last phase; null: one for all",
    )
    stability: PositiveFloat | None = Field(None, description="γ, where gradients are scaled to norm · ‖g‖ / (‖g‖ + γ)")
    count: CountFacts | None = Field(None, description="of adaptive clipping")
    augmentations: PositiveInt = Field(1, description="copies of a record whose gradients are averaged before clipping")


class DpsgdFacts(NoisyFacts):
    """Noise on the sum of clipped gradients."""

    kind: Literal["dpsgd"]
    clipping: ClippingFacts


class DpsgdCertificate(CertificatePart[DpsgdFacts, None, None]):
    """DP-SGD's part of a certificate."""

    facts = DpsgdFacts
    audit_tests = noisy_sum.AUDIT_TESTS

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: None) -> DpsgdFacts:
        planned = plan.as_plan_of(DpsgdPlan)
        clip, last = planned.clip, planned.phases[-1]
        return DpsgdFacts(
            kind="dpsgd",
            noise=NoiseFacts(
                family=planned.noise_family,
                multiplier=last.noise_multiplier,
                scale=planned.noise_scale(last),
                standard_deviation=planned.noise_deviation(last),
                added_to="the sum of the clipped gradients, before it is divided or used",
            ),
            phases=_phases(planned),
            clipping=ClippingFacts(
                norm=planned.phases[0].clip_norm,
                mode=clip.mode,
                norm_kind=clip.norm_kind,
                layers=clip.norms,
                groups=clip.groups,
                noise=planned.group_multipliers(last),
                stability=clip.stability,
                count=_count(clip, last.noise_multiplier),
                augmentations=planned.augmentations,
            ),
            aggregation=noisy_sum.aggregation_facts(plan, planned.expected_batch, BOUNDS[clip.mode]),
        )

    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        return unit_of(plan, noisy_sum.describe_clipping(plan, plan.as_plan_of(DpsgdPlan).augmentations))

    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        return CHECKS

    def count_steps(self, event: Event) -> int:
        return event.steps

    def describe_noise(self, facts: DpsgdFacts) -> str:
        filtered = "" if facts.aggregation.filter is None else ", filtered"
        return f"{facts.noise.family} noise of multiplier {facts.multipliers}{filtered}"

    def list_sections(self, facts: DpsgdFacts) -> Sequence[Section]:
        return noisy_sum.list_sections(facts)


def _phases(plan: DpsgdPlan) -> tuple[PhaseFacts, ...] | None:
    phases = plan.phases
    if len(phases) == 1:
        return None
    moving = any(phase.divisor != phases[0].divisor for phase in phases)
    return tuple(
        PhaseFacts(
            steps=phase.steps,
            family=plan.noise_family,
            shape=None,
            multiplier=phase.noise_multiplier,
            clip_norm=phase.clip_norm,
            expected_batch=phase.divisor if moving else None,
        )
        for phase in phases
    )


def _count(clip: PlannedClip, multiplier: float) -> CountFacts | None:
    if clip.adaptation is None:
        return None
    return CountFacts(
        quantile=clip.adaptation.quantile,
        learning_rate=clip.adaptation.learning_rate,
        noise=clip.adaptation.count_noise,
        gradient_multiplier=gradient_multiplier(multiplier, clip.adaptation.count_noise),
    )


PART = DpsgdCertificate()
