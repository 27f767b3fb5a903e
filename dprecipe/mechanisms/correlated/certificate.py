"""The part of a certificate about correlated noise: the clipping, the noise, and what a step takes back of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from dprecipe.contract.certificate import CertificatePart, Section, unit_of
from dprecipe.contract.facts import NoisyFacts, PrivacyUnit, Probability
from dprecipe.contract.plan import Plan
from dprecipe.language.base import Block, NonNegativeFloat, PositiveFloat, PositiveInt
from dprecipe.mechanisms.correlated.plan import CorrelatedPlan
from dprecipe.noisy_sum import certificate as noisy_sum
from dprecipe.privacy.correlated_sums import BandedGaussian
from dprecipe.privacy.correlation.strategies import MAX_BANDS
from dprecipe.privacy.events import Charge, Event

CHECKS = {
    **noisy_sum.CLIPPED_CHECKS,
    "noise_correlation": "the noise of a step takes back the planned share of the noise of the steps before",
}


class NoiseLeft(Block):
    """The noise that correlation leaves, and the distance it hides."""

    sensitivity: PositiveFloat
    noise_in_iterates: PositiveFloat = Field(
        description="root mean square of the noise in the sum of all steps so far, in clip norms"
    )


class PreviousStepFacts(NoiseLeft):
    """Noise that takes back a share of the fresh noise of the step before, in a fixed order."""

    form: Literal["previous_step"]
    previous: Probability = Field(description="λ: the share of a step's fresh noise that the next step takes back")
    batches: PositiveInt = Field(description="steps of a pass; a unit takes part in one of them, always the same")
    passes: PositiveInt = Field(description="as planned")
    block_size: PositiveInt | None = Field(None, description="consecutive units at one place; null: each has its own")
    sensitivity: PositiveFloat = Field(
        description="S, in clip norms: a run of one attempt is a Gaussian mechanism of μ = S over the noise "
        "multiplier (twice that where a unit is replaced)"
    )
    independent_noise: PositiveFloat = Field(
        description="the same of noise that is independent over steps, at the same ε and in the same order"
    )


class BandedFacts(NoiseLeft):
    """Noise that takes back shares of all noise of a few steps before, of batches from parts of the data in turn."""

    form: Literal["banded"]
    coefficients: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1, max_length=MAX_BANDS)] = Field(
        description="c_0 = 1, c_1, …: the first column of the matrix C by which noise is correlated"
    )
    part_rate: Probability = Field(
        description="the rate at which a unit joins the batches of its part, of as many parts as coefficients"
    )
    groups: PositiveInt = Field(description="as planned: each is a step of every part")
    sensitivity: PositiveFloat = Field(
        description="‖c‖, in clip norms: the groups together are as private as as many Poisson batches of rate "
        "`part_rate` whose noise multiplier is that of the fresh noise over ‖c‖"
    )


class CorrelatedFacts(NoisyFacts):
    """Noise on the sum of clipped gradients, correlated over steps. Multiplier and scale of `noise` are those of the
    fresh noise of a step."""

    kind: Literal["correlated"]
    clipping: noisy_sum.ClippingFacts
    correlation: Annotated[PreviousStepFacts | BandedFacts, Field(discriminator="form")]


class CorrelatedCertificate(CertificatePart[CorrelatedFacts, None, None]):
    """The part of a certificate about correlated noise."""

    facts = CorrelatedFacts
    audit_tests = noisy_sum.AUDIT_TESTS

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: None) -> CorrelatedFacts:
        planned = plan.as_plan_of(CorrelatedPlan)
        fresh = noisy_sum.noise_facts(planned)
        deviation = planned.noise_deviation(planned.phases[-1]) * planned.step_deviation
        return CorrelatedFacts(
            kind="correlated",
            noise=fresh.model_copy(update={"standard_deviation": deviation}),
            clipping=noisy_sum.clipping_facts(planned),
            aggregation=noisy_sum.aggregation_facts(
                plan, planned.expected_batch, noisy_sum.CLIP_BOUNDS[planned.clip.mode]
            ),
            correlation=_correlation_facts(planned),
        )

    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        return unit_of(plan, noisy_sum.describe_clipping(plan, plan.as_plan_of(CorrelatedPlan).augmentations))

    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        return CHECKS

    def count_steps(self, event: Event) -> int:
        return event.steps

    def describe_noise(self, facts: CorrelatedFacts) -> str:
        filtered = "" if facts.aggregation.filter is None else ", filtered"
        correlation = facts.correlation
        share = (
            f"{correlation.previous:g} of it taken back in the next step"
            if isinstance(correlation, PreviousStepFacts)
            else f"correlated over {len(correlation.coefficients)} steps"
        )
        return f"gaussian noise of multiplier {facts.multipliers}, {share}{filtered}"

    def list_sections(self, facts: CorrelatedFacts) -> Sequence[Section]:
        correlation = facts.correlation
        if isinstance(correlation, PreviousStepFacts):
            return (_describe_passes(correlation), *noisy_sum.list_sections(facts))
        return (_describe_bands(correlation), *noisy_sum.list_sections(facts))


def _correlation_facts(planned: CorrelatedPlan) -> PreviousStepFacts | BandedFacts:
    event = planned.first
    if isinstance(event, BandedGaussian):
        return BandedFacts(
            form="banded",
            coefficients=event.coefficients,
            part_rate=event.part_rate,
            groups=sum(charge.count for charge in planned.events),
            sensitivity=planned.sensitivity,
            noise_in_iterates=planned.noise_in_iterates,
        )
    return PreviousStepFacts(
        form="previous_step",
        previous=event.previous,
        batches=event.batches,
        passes=len(planned.cycles),
        block_size=event.block_size,
        sensitivity=planned.sensitivity,
        noise_in_iterates=planned.noise_in_iterates,
        independent_noise=planned.independent_noise,
    )


def _describe_passes(correlation: PreviousStepFacts) -> Section:
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
    return Section("The correlation of noise", rows, text=text)


def _describe_bands(correlation: BandedFacts) -> Section:
    parts = len(correlation.coefficients)
    text = (
        f"The noise of a step takes back parts of the noise of the {parts - 1} steps before. Each unit is in one of "
        f"{parts} parts, which take turns, and joins a batch of its part with probability {correlation.part_rate:g}. A "
        "group of steps, one of each part, costs what one such batch costs, with the noise multiplier over ‖c‖. Each "
        "attempt had parts and noise of its own; every group that began is charged."
    )
    rows = (
        ("coefficients c", ", ".join(f"{c:.4g}" for c in correlation.coefficients)),
        ("norm ‖c‖", f"{correlation.sensitivity:g} clip norms"),
        ("noise in the iterates", f"{correlation.noise_in_iterates:g} clip norms"),
    )
    return Section("The correlation of noise", rows, text=text)


PART = CorrelatedCertificate()
