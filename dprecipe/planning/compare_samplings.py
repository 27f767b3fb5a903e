"""Sampling schemes beside that of a plan: what each costs at its noise, and the noise that each needs for its ε."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dprecipe.contract.plan import Plan
from dprecipe.faults import Fault, PlanRefused, RecipeError
from dprecipe.planning.curves import find_noise
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import Loaded
from dprecipe.recipe.root import PointError, set_values

KEY = "mechanism.sampling"


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """A scheme with ε at the plan's noise multiplier, and the multiplier at the plan's ε; or why it has neither."""

    scheme: str
    epsilon: float | None
    noise_multiplier: float | None
    reason: str = ""


def compare_samplings(loaded: Loaded, plan: Plan) -> tuple[SamplingRow, ...]:
    """Returns a row for each scheme with the plan's batch size and length; none where the plan has not one batch size
    and one noise multiplier."""
    sampling = getattr(loaded.recipe.mechanism, "sampling", None)
    noise, batch = find_noise(loaded, plan), getattr(sampling, "batch_size", 0)
    if noise is None or type(batch) is not int or not batch:
        return ()
    cap = round(batch + 6 * batch**0.5)
    schemes: list[Mapping[str, Any]] = [
        {"scheme": "dealt"},
        {"scheme": "dealt", "batch_limit": cap},
        {"scheme": "poisson"},
        {"scheme": "permuted"},
        {"scheme": "fixed_size"},
        {"scheme": "truncated_poisson", "max_batch_size": cap},
    ]
    return tuple(_compare(loaded, plan, noise, {**scheme, "batch_size": batch}) for scheme in schemes)


def _compare(loaded: Loaded, plan: Plan, noise: tuple[str, float], sampling: Mapping[str, Any]) -> SamplingRow:
    key, multiplier = noise
    name = sampling["scheme"] + (", batch_limit" if "batch_limit" in sampling else "")
    found: list[Plan] = []
    for values in (
        {key: multiplier, "budget.epsilon": "auto"},
        {key: "auto", "budget.epsilon": plan.guarantee.epsilon},
    ):
        try:
            recipe = set_values(loaded.recipe, {**plan.solved, KEY: dict(sampling), **values})
            found.append(make_plan(replace(loaded, recipe=recipe)))
        except (Fault, PointError) as error:
            reason = error.findings[0].message if isinstance(error, PlanRefused | RecipeError) else str(error)
            return SamplingRow(name, None, None, reason)
    return SamplingRow(name, found[0].guarantee.epsilon, float(found[1].solved[key]))
