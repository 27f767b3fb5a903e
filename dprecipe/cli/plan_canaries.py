"""The lines of `dprecipe plan` on canaries: how many there are, what they cost, and what they can show."""

from __future__ import annotations

import math

from dprecipe.contract.plan import Plan
from dprecipe.models.layout import trained_parameters
from dprecipe.models.schema import Transformer
from dprecipe.planning.canaries import canaries_of, naming_of
from dprecipe.release.tensors import expected_shapes


def describe_canaries(plan: Plan) -> list[tuple[str, str]]:
    """Returns the rows of a plan; none without canaries."""
    count, block = canaries_of(plan), plan.audit
    if not count or block is None:
        return []
    from dprecipe.privacy.audit.counts import lower_epsilon_of_guesses  # needed by few plans
    from dprecipe.privacy.audit.power import smallest_fault
    from dprecipe.privacy.audit.results import Guesses

    naming, units = naming_of(plan), plan.data.planned_units + count
    guesses = Guesses(canaries=count, named_in=naming.each, named_out=naming.each, correct=naming.expected)
    terms = (block.confidence, plan.guarantee.delta)
    shown = lower_epsilon_of_guesses(guesses, *terms)
    fault = smallest_fault(guesses, block.confidence, plan.guarantee.epsilon, plan.guarantee.delta)
    seen = "none is large enough to be called one" if fault is None else f"ε = {fault:.3g} or more is called one"
    return [
        (
            "canaries",
            f"{count:,}, each a {block.canary}, in the run by a secret coin: {_describe_share(plan, count, units)}",
        ),
        ("they cost", _describe_cost(plan, count, units)),
        (
            "they show",
            f"of a sound program ε of about {shown:.2g} at least, at confidence {block.confidence:g}, from "
            f"{naming.each:,} that are named in and {naming.each:,} that are named out; of faults, {seen} in 8 of 10 "
            "runs",
        ),
    ]


def _describe_share(plan: Plan, count: int, units: int) -> str:
    inside = count / 2 * plan.mechanism_plan.expected_batch / units
    return f"{inside:.3g} of them in a batch of {plan.mechanism_plan.expected_batch:,.10g}, as expected"


def _describe_cost(plan: Plan, count: int, units: int) -> str:
    """Describes what canaries take from the records, and what their gradients add to the noise."""
    rate = plan.mechanism_plan.sampling_rate
    part = f"a batch has {count / units:.2%} fewer records"
    if rate is not None:
        before = plan.mechanism_plan.expected_batch / (units - count)
        part += f" (the sampling rate is {rate:.6g}, and was {before:.6g} without)"
    if plan.audit is None or plan.audit.canary != "gradient":
        return part
    weights = _count_weights(plan)
    if not weights:
        return part
    multiplier = min(charge.event.multipliers[0] for charge in plan.mechanism_plan.events)
    share = count / 2 * (1.0 if rate is None else rate) / (weights * multiplier**2)
    return f"{part}; their gradients add about {share:.2%} to the variance of the noise on a weight"


def _count_weights(plan: Plan) -> int:
    """Counts the weights that are trained; 0 where that is not known without the model."""
    shapes = expected_shapes(plan)
    if shapes is None or (isinstance(plan.model, Transformer) and plan.model.lora is not None):
        return 0
    return sum(math.prod(shapes[name]) for name in trained_parameters(plan.model, shapes))
