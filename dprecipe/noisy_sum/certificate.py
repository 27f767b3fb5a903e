"""Shared parts of certificates of noisy gradient sums: how units take part, and the tests of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from dprecipe.contract.certificate import NOISE_SCALE, Section
from dprecipe.contract.facts import AggregationFacts, NoiseFacts, NoisyFacts, Probability, Word
from dprecipe.contract.plan import Plan
from dprecipe.data.names import quote_name
from dprecipe.language.base import Block, PositiveFloat, PositiveInt
from dprecipe.language.training import Kalman, LowPass
from dprecipe.noisy_sum.clipped_plan import ClippedPlan, PlannedClip, gradient_multiplier

GRADIENT_CHECKS = {
    "output": "finite outputs, one row for each record",
    "loss_per_record": "one finite loss for each record, with no reduction",
    "records_independent": "no record influences another's output",
    "losses_independent": "no record influences another's loss",
    "per_record_gradients": "per-record gradients equal those of a loop over single records",
    "gradients_independent": "no record influences another's gradient",
    "larger_batches": "no output and no sum depends on the number of records, up to what the engine processes at once",
    "buffers_unmoved": "in training no buffer changes, and no weight changes by itself",
    "single_precision": "products in single precision are not rounded to fewer bits after a norm was taken",
    **NOISE_SCALE,
}
"""The checks of a program that sums bounded gradients, each with what it shows."""

CLIPPED_CHECKS = {
    **GRADIENT_CHECKS,
    "clipped_sum": "the clipped sum equals that of a loop over single records",
    "clipped_sum_edges": "an empty batch gives zero, a non-finite record adds zero, and a unit stays within the clip "
    "norm",
}
CLIP_BOUNDS = {
    "flat": "each unit's clipped to the norm",
    "per_layer": "each unit's clipped layer by layer",
    "automatic": "each unit's scaled to less than the norm",
    "adaptive": "each unit's clipped to the norm of the step",
}
"""The bound on a unit's gradient, in words, by clipping mode."""

AUDIT_TESTS = frozenset(
    {
        *("epsilon", "sum_alone", "sum_amid_others", "sum_replaced", "sum_empty"),
        *("noise_scale", "noise_distribution", "noise_steps", "noise_present", "noise_blind", "lattice"),
        *("ledger_counts", "ledger_first", "streams_once", "streams_secret", "post_processing"),
    }
)
"""The tests that every audit of such a program has; further ones depend on its sampling and its size."""

PARTICIPATION = {
    "poisson": ("sampled by itself", "are sampled together"),
    "truncated_poisson": ("sampled by itself", "are sampled together"),
    "fixed_size": ("drawn in batches of one size", "are drawn together"),
    "full_batch": ("takes part in every step", "take part together in every step"),
    "permuted": ("in at most one batch of each epoch", "are together in at most one batch of each epoch"),
    "fixed_order": (
        "in one batch of each pass, always the same",
        "are together in one batch of each pass, always the same",
    ),
    "cyclic_poisson": (
        "sampled by itself when it is the turn of its part of the data",
        "are sampled together when it is the turn of their part of the data,",
    ),
    "dealt": ("dealt to one batch of each epoch", "are dealt together to one batch of each epoch"),
    "capped_dealt": (
        "dealt to one batch of each epoch, and left out where that is full",
        "are dealt together to one batch of each epoch, in which they take part together or not at all,",
    ),
}
"""The way a record, and the records of a unit, take part in a step, by sampling scheme."""


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


def aggregation_facts(plan: Plan, divisor: float, bound: str) -> AggregationFacts:
    """Returns the facts of a sum of gradients; `bound` says what bounds each unit's gradient."""
    return AggregationFacts(
        of=f"sum of a batch's gradients, {bound}; an empty batch is a zero sum",
        divisor=divisor,
        filter=describe_filter(plan.training.filter),
    )


def describe_filter(spec: LowPass | Kalman | None) -> str | None:
    """Describes the filter of noisy gradients; None where there is none."""
    if spec is None:
        return None
    free = "it reads released noisy sums and iterates alone, and costs no privacy"
    if isinstance(spec, LowPass):
        return f"noisy gradients pass a low-pass filter of decay {spec.decay:g}: {free}"
    return (
        f"noisy gradients pass a Kalman filter of gain {spec.gain:g}, and sums are taken ahead of the weights, where "
        f"the last step leads: {free}"
    )


def list_sections(facts: NoisyFacts) -> Sequence[Section]:
    """Lists the report's section about the filter, if there is one."""
    text = facts.aggregation.filter
    return () if text is None else (Section("The filter of gradients", (), text=f"{text[:1].upper()}{text[1:]}."),)


def describe_clipping(plan: Plan, copies: int) -> str:
    """Describes how the gradients of one unit's records are clipped as one, with `copies` augmented copies of each
    record."""
    averaged = f"; the gradients of its {copies} augmented copies are averaged first" if copies > 1 else ""
    scheme, cap = plan.mechanism_plan.scheme, plan.mechanism_plan.max_batch_size
    of_record, of_unit = PARTICIPATION["capped_dealt" if scheme == "dealt" and cap is not None else scheme]
    unit = plan.data.unit
    if unit == "record":
        return f"each record's gradient is clipped by itself, and {of_record}{averaged}"
    return (
        f"records with the same {quote_name(unit.column)} {of_unit} and their gradients are clipped together; "
        f"at most {unit.max_records} of them are used{averaged.replace('its', 'their')}"
    )


def clipping_facts(planned: ClippedPlan) -> ClippingFacts:
    """Returns the facts of a plan's clipping."""
    clip, last = planned.clip, planned.phases[-1]
    return ClippingFacts(
        norm=planned.phases[0].clip_norm,
        mode=clip.mode,
        norm_kind=clip.norm_kind,
        layers=clip.norms,
        groups=clip.groups,
        noise=planned.group_multipliers(last),
        stability=clip.stability,
        count=_count(clip, last.noise_multiplier),
        augmentations=planned.augmentations,
    )


def noise_facts(planned: ClippedPlan) -> NoiseFacts:
    """Returns the facts of the noise in the last phase of a plan."""
    last = planned.phases[-1]
    return NoiseFacts(
        family=planned.noise_family,
        multiplier=last.noise_multiplier,
        scale=planned.noise_scale(last),
        standard_deviation=planned.noise_deviation(last),
        added_to="the sum of the clipped gradients, before it is divided or used",
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
