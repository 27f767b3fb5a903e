"""DP-SGD's part of a certificate: how gradients were clipped, and the noise on their sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from dprecipe.contract.certificate import CertificatePart, Section, unit_of
from dprecipe.contract.facts import NoisyFacts, PhaseFacts, PrivacyUnit
from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.dpsgd.plan import DpsgdPlan
from dprecipe.noisy_sum import certificate as noisy_sum
from dprecipe.privacy.events import Charge, Event

CHECKS = noisy_sum.CLIPPED_CHECKS


class DpsgdFacts(NoisyFacts):
    """Noise on the sum of clipped gradients."""

    kind: Literal["dpsgd"]
    clipping: noisy_sum.ClippingFacts


class DpsgdCertificate(CertificatePart[DpsgdFacts, None, None]):
    """DP-SGD's part of a certificate."""

    facts = DpsgdFacts
    audit_tests = noisy_sum.AUDIT_TESTS

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: None) -> DpsgdFacts:
        planned = plan.as_plan_of(DpsgdPlan)
        return DpsgdFacts(
            kind="dpsgd",
            noise=noisy_sum.noise_facts(planned),
            phases=_phases(planned),
            clipping=noisy_sum.clipping_facts(planned),
            aggregation=noisy_sum.aggregation_facts(
                plan, planned.expected_batch, noisy_sum.CLIP_BOUNDS[planned.clip.mode]
            ),
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


PART = DpsgdCertificate()
