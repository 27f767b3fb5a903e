"""What certificates of noisy sums of gradients share: how units take part, and what is tested of their gradients."""

from __future__ import annotations

from dprecipe.mechanisms.certificate import NOISE_SCALE
from dprecipe.mechanisms.facts import AggregationFacts
from dprecipe.mechanisms.plan import Plan

GRADIENT_CHECKS = {
    "output": "finite outputs, one row of logits for each record",
    "loss_per_record": "one finite loss for each record, nothing added up",
    "records_independent": "no record influences another's output",
    "losses_independent": "no record influences another's loss",
    "per_record_gradients": "per-record gradients equal those of a loop over single records",
    "gradients_independent": "no record influences another's gradient",
    "larger_batches": "no output and no sum depends on how many records there are, up to what the engine takes at once",
    "buffers_unmoved": "no buffer moves in training, nor a weight by itself",
    "single_precision": "products and convolutions in single precision are not rounded to fewer bits",
    **NOISE_SCALE,
}
"""What is tested of a program that sums bounded gradients, and what each check shows."""

TAKES_PART = {
    "poisson": ("sampled by itself", "are sampled together"),
    "truncated_poisson": ("sampled by itself", "are sampled together"),
    "fixed_size": ("drawn in batches of one size", "are drawn together"),
    "full_batch": ("takes part in every step", "take part together in every step"),
    "shuffle": ("dealt to one batch of each epoch", "are dealt together to one batch of each epoch"),
}
"""How a record, and how the records of a unit, come to take part in a step."""


def aggregation_facts(divisor: float, each: str) -> AggregationFacts:
    """A sum of gradients; `each` says what bounds each unit's."""
    return AggregationFacts(of=f"sum of a batch's gradients, {each}; an empty batch is a zero sum", divisor=divisor)


def clipped_together(plan: Plan, copies: int) -> str:
    """What bounds a unit whose records' gradients are clipped together, of `copies` augmented copies each."""
    averaged = f"; the gradients of its {copies} augmented copies are averaged first" if copies > 1 else ""
    alone, together = TAKES_PART[plan.room.scheme]
    unit = plan.data.unit
    if unit == "record":
        return f"each record's gradient is clipped by itself, and {alone}{averaged}"
    return (
        f"records that share a value of {plan.guarantee.unit} {together} and their gradients are clipped together; "
        f"at most {unit.max_records} of them are used{averaged.replace('its', 'their')}"
    )
