"""Gradient encoding's part of a certificate: the codebook whose envelope bounds a unit, and the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from dprecipe.contract.certificate import CertificatePart, Section, unit_of
from dprecipe.contract.facts import Digest, NoiseFacts, NoisyFacts, PhaseFacts, PrivacyUnit, Rendered
from dprecipe.contract.plan import Plan
from dprecipe.language.base import Block, PositiveFloat, PositiveInt
from dprecipe.mechanisms.encoded.plan import EncodedPlan
from dprecipe.mechanisms.encoded.schema import KolmogorovSmirnov
from dprecipe.noisy_sum import certificate as noisy_sum
from dprecipe.privacy.events import Charge, Event

CHECKS = {
    **noisy_sum.GRADIENT_CHECKS,
    "encoded_sum": "the encoded sum equals that of a loop over single records, and each code lies in its codeword's "
    "box",
    "encoded_sum_edges": "an empty batch gives zero, a non-finite record adds zero, and a unit adds one code",
}


class EncodingFacts(Block):
    """The public codebook whose envelope bounds what one unit can move, coordinate by coordinate."""

    codebook: Digest
    source: Literal["gaussian", "file"]
    codewords: PositiveInt
    norm: PositiveFloat = Field(description="L2 norm of every codeword")
    sensitivity: PositiveFloat = Field(
        description="how far one unit can move a sum in L2 norm, each layer over its relative noise"
    )
    dimension: PositiveInt
    groups: Annotated[tuple[PositiveInt, ...], Field(max_length=10_000)] = Field(
        description="coordinates of each group; groups are ranked separately"
    )
    group_noise: Annotated[tuple[PositiveFloat, ...], Field(max_length=10_000)] | None
    microbatch: PositiveInt
    slots: PositiveInt | None
    denoising: Rendered = ""


class EncodedFacts(NoisyFacts):
    """Noise on the sum of codes."""

    kind: Literal["encoded"]
    encoding: EncodingFacts


class EncodedCertificate(CertificatePart[EncodedFacts, None, None]):
    """Encoding's part of a certificate."""

    facts = EncodedFacts
    audit_tests = noisy_sum.AUDIT_TESTS

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: None) -> EncodedFacts:
        planned = plan.as_plan_of(EncodedPlan)
        noise = planned.noises[-1]
        bound = "each unit's bounded rank by rank by a codeword"
        if planned.slots is not None:
            bound = "the mean of each micro-batch bounded rank by rank by a codeword"
        return EncodedFacts(
            kind="encoded",
            noise=NoiseFacts(
                family=noise.family,
                shape=noise.shape,
                multiplier=noise.multiplier,
                scale=noise.scale,
                standard_deviation=noise.deviation,
                added_to="the sum of the codes, before it is divided or used",
            ),
            phases=_phases(planned),
            encoding=_encoding(planned),
            aggregation=noisy_sum.aggregation_facts(plan, planned.divisor, bound),
        )

    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        enforced_by = noisy_sum.describe_clipping(plan, copies=1)
        if plan.as_plan_of(EncodedPlan).slots is not None:
            participation = "is sampled, and assigned to a micro-batch, independently"
            if plan.mechanism_plan.scheme == "full_batch":
                participation = "takes part in every step, and is assigned to a micro-batch independently"
            enforced_by = (
                f"each {plan.guarantee.unit} {participation}; the mean gradient of a micro-batch is "
                "encoded, so one code is exchanged for another"
            )
        return unit_of(plan, enforced_by)

    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        return CHECKS

    def count_steps(self, event: Event) -> int:
        return event.steps

    def describe_noise(self, facts: EncodedFacts) -> str:
        filtered = "" if facts.aggregation.filter is None else ", filtered"
        return f"{facts.noise.family} noise of multiplier {facts.multipliers}{filtered}"

    def list_sections(self, facts: EncodedFacts) -> Sequence[Section]:
        return noisy_sum.list_sections(facts)


def _phases(plan: EncodedPlan) -> tuple[PhaseFacts, ...] | None:
    noises = plan.noises
    if len(noises) == 1:
        return None
    return tuple(PhaseFacts(steps=n.steps, family=n.family, shape=n.shape, multiplier=n.multiplier) for n in noises)


def _encoding(plan: EncodedPlan) -> EncodingFacts:
    return EncodingFacts(
        codebook=plan.digest,
        source=plan.codebook.source,
        codewords=plan.words,
        norm=plan.codebook.norm,
        sensitivity=plan.sensitivity,
        dimension=plan.dimension,
        groups=plan.groups,
        group_noise=plan.group_noise,
        microbatch=plan.microbatch,
        slots=plan.slots,
        denoising=_denoising(plan.denoise),
    )


def _denoising(denoise: KolmogorovSmirnov | None) -> str:
    if denoise is None:
        return "none"
    bound = "one factor" if denoise.per == "model" else "one factor for each group"
    less = ", minus its expected value under pure noise" if denoise.shrink else ""
    return f"steps are scaled by the Kolmogorov-Smirnov distance of the noisy sum from its noise alone{less}, {bound}"


PART = EncodedCertificate()
