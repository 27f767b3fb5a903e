"""Steps of preprocessing that read private records: who composes them, and what they may release."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.data.paid.schema import PAID, DpCount
from dprecipe.faults import Finding
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.recipe.root import Recipe


def check_paid_steps(recipe: Recipe) -> Iterator[Finding]:
    """A mechanism composes them with what it releases itself, or refuses them (P124); a noisy count is for a number of
    units that the relation hides (P125)."""
    kind, relation = recipe.mechanism.kind, recipe.budget.neighbouring
    for index, step in enumerate(recipe.data.preprocess):
        name = next((name for name in PAID if getattr(step, name) is not None), None)
        path = f"data.preprocess.{index}.{name}"
        if name is not None and not mechanism_of(kind).composes_paid_steps:
            yield Finding(
                "P124",
                f"{name} reads private records, and {kind} has no guarantee for its steps and such a release together",
                "remove the step, and declare its constants from domain knowledge (scale, hash, clip_features)",
                path,
            )
        if isinstance(step.operation, DpCount) and relation != "add_or_remove_one":
            yield Finding(
                "P125",
                f"a noisy number of units costs ε, and under {relation} that number is public",
                "remove dp_count: later steps divide by data.size",
                path,
            )
