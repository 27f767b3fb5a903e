"""The plan of a run without privacy. It has no guarantee, and no field that could hold one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dprecipe.contract.plan import Length, RecipeSource, digest_of
from dprecipe.data.schema import Data
from dprecipe.faults import PlanRefused
from dprecipe.language.training import Training
from dprecipe.models.public_record import NO_GUARANTEE
from dprecipe.models.schema import Model
from dprecipe.nonprivate.rules import check
from dprecipe.recipe.read import LoadedPublic
from dprecipe.recipe.root import PublicRuntime


@dataclass(frozen=True, slots=True)
class PublicPlan:
    """Plan of a run without privacy."""

    name: str
    source: RecipeSource
    resolved: Mapping[str, Any]
    """The recipe with every default filled in, JSON types only."""
    data: Data
    model: Model
    training: Training
    runtime: PublicRuntime
    batch_size: int
    """Records of one update; the last batch of an epoch has what is left."""
    length: Length

    @property
    def digest(self) -> str:
        """SHA-256 over the resolved recipe; the device is left out."""
        content = dict(self.resolved)
        return digest_of({**content, "runtime": {"seed": self.runtime.seed}})

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as `dprecipe plan --format json` prints it."""
        from dprecipe.contract.document import RecipeName
        from dprecipe.nonprivate.plan_document import PublicPlanDocument

        return PublicPlanDocument(
            recipe=RecipeName(name=self.name, digest=self.source.digest),
            digest=self.digest,
            steps=self.length.steps,
            batch_size=self.batch_size,
        ).to_json()

    def describe(self) -> list[str]:
        """Returns the plan as lines of text."""
        data = self.data
        about = "" if data.split is None else "about "
        rows = [
            ("mechanism", "none"),
            ("guarantee", f"none. {NO_GUARANTEE[:1].upper()}{NO_GUARANTEE[1:]}"),
            ("learns from", f"{about}{data.planned_units:,} records that the recipe declares public"),
            ("steps", f"{self.length.steps:,} of {self.batch_size:,} records each"),
            ("writes", "weights, model.json and provenance; no certificate"),
            ("digest", self.digest),
        ]
        return [self.name, *(f"  {name:<11}  {value}" for name, value in rows)]


def make_plan(loaded: LoadedPublic) -> PublicPlan:
    """Checks a recipe without privacy and freezes what the run will do.

    Raises:
        PlanRefused: with every finding, each at its place in the recipe.
    """
    recipe = loaded.recipe
    findings = check(recipe)
    if findings:
        raise PlanRefused(loaded.located(findings))
    training = recipe.training
    batch_size = min(recipe.data.planned_units, training.batch_size or recipe.data.planned_units)
    steps_per_epoch = math.ceil(recipe.data.planned_units / batch_size)
    steps = training.steps if isinstance(training.steps, int) else None
    epochs = training.epochs if isinstance(training.epochs, int | float) else 1.0
    length = Length(math.ceil(epochs * steps_per_epoch) if steps is None else steps, steps_per_epoch)
    return PublicPlan(
        name=recipe.name,
        source=loaded.source,
        resolved=recipe.model_dump(mode="json", by_alias=True),
        data=recipe.data,
        model=recipe.model,
        training=training,
        runtime=recipe.runtime,
        batch_size=batch_size,
        length=length,
    )
