"""The plan of a run without privacy, and its checks: records are declared public, and the model can be trained.

The plan has no guarantee, and no field that could hold one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dprecipe.contract.plan import Length, RecipeSource, digest_of
from dprecipe.contract.table import list_kinds
from dprecipe.data import checks as data_checks
from dprecipe.data.facts import describe_data
from dprecipe.data.paid.schema import PaidStep
from dprecipe.data.schema import Data
from dprecipe.faults import Finding, PlanRefused
from dprecipe.language.training import Training
from dprecipe.language.words import join_with_or
from dprecipe.models import checks as model_checks
from dprecipe.models.public_record import NO_GUARANTEE
from dprecipe.models.schema import Model, NoModel, Trees
from dprecipe.planning.from_python import REMEDIES, list_own
from dprecipe.planning.labels import check_loss
from dprecipe.planning.learning import check_length
from dprecipe.planning.paths import check_data_files
from dprecipe.planning.split import check_column
from dprecipe.recipe.read import LoadedPublic
from dprecipe.recipe.root import PublicRecipe, PublicRuntime


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
        from dprecipe.nonprivate.documents import PublicPlanDocument

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


def check(recipe: PublicRecipe) -> list[Finding]:
    """Returns all findings of a well-formed recipe without privacy; all of them are errors."""
    return [finding for rule in RULES for finding in rule(recipe)]


def check_access(recipe: PublicRecipe) -> Iterator[Finding]:
    """Checks that private records have a mechanism that protects them. That records are public can only be declared."""
    kinds = join_with_or(list_kinds(lambda mechanism: True))
    for role, source in (("train", recipe.data.train), ("test", recipe.data.test)):
        if source is not None and source.access != "public":
            use = "weights would hold them" if role == "train" else "the score on them is published"
            yield Finding(
                "P190",
                f"data.{role} is not declared public, and mechanism none protects nobody: {use}",
                f"set data.{role}.access to public if publishing these records harms nobody"
                + (f"; else choose mechanism.kind {kinds}, and a budget" if role == "train" else "; else remove it"),
                f"data.{role}",
            )


def check_unused_keys(recipe: PublicRecipe) -> Iterator[Finding]:
    """Refuses keys that only a guarantee, or a student, gives a meaning."""
    data, training = recipe.data, recipe.training
    unused: list[tuple[str, str]] = []
    if data.public is not None:
        unused.append(("data.public", "all records are public here, and data.train is what is learned from"))
    if data.unit != "record":
        unused.append(("data.unit", "mechanism none protects no unit"))
    for number, step in enumerate(data.preprocess):
        if isinstance(step.operation, PaidStep):
            unused.append((f"data.preprocess.{number}", "a paid step spends from a budget, and there is none"))
    if training.augment is not None:
        unused.append(("training.augment", "it is for a student; crop and flip in data.preprocess move images"))
    if training.robustness:
        unused.append(("training.robustness", "it is for a student"))
    if training.semi_supervised is not None:
        unused.append(("training.semi_supervised", "it is for a student"))
    if training.filter is not None:
        unused.append(("training.filter", "gradients have no noise"))
    if training.keep is not None:
        unused.append(("training.keep", "mechanism none writes the last iterate"))
    if data.hides_size:
        yield Finding(
            "R309",
            "data.size.max has no effect: mechanism none protects no number of records",
            "write the number of records as data.size",
            "data.size",
        )
    for path, why in unused:
        yield Finding("R309", f"{path} has no effect: {why}", f"remove {path}", path)


def check_training(recipe: PublicRecipe) -> Iterator[Finding]:
    """Checks that there are an optimizer, exactly one length, and the size of a batch; nothing is solved for."""
    training = recipe.training
    if isinstance(recipe.model, NoModel):
        yield Finding("R279", "mechanism none trains a model, and there is none", "choose a model.kind", "model.kind")
        return
    if isinstance(recipe.model, Trees):
        yield Finding(
            "R305",
            f"a {recipe.model.kind} has no gradients: mechanism none can't train it",
            "choose model.kind logistic_regression, mlp or cnn",
            "model.kind",
        )
        return
    if training.optimizer is None:
        yield Finding(
            "R304", "training has no optimizer", "add training.optimizer, such as {kind: sgd, lr: 0.1}", "training"
        )
    for key in list_own(training):
        yield Finding("R306", "mechanism none takes the recipe's own steps", REMEDIES[key], key)
    if training.batch_size is None:
        yield Finding(
            "R304",
            "training has no batch size: mechanism none has none of its own",
            "set training.batch_size to the number of records in one update, such as 256",
            "training",
        )
    yield from check_length(training)
    for key in ("epochs", "steps"):
        if getattr(training, key) == "auto":
            yield Finding(
                "R306",
                "there is no budget, so nothing says how long training is",
                f"give training.{key} a number",
                f"training.{key}",
            )


def check_data_and_model(recipe: PublicRecipe) -> Iterator[Finding]:
    """Checks that sources, columns and preprocessing fit together, and the model takes what they make."""
    yield from model_checks.find_unsupported(
        recipe.model,
        "mechanism none",
        fitted=False,
        convex=join_with_or(list_kinds(lambda mechanism: mechanism.is_convex)),
    )
    findings = data_checks.check_data(recipe.data)
    yield from findings
    if not any(finding.is_error for finding in findings):
        facts = describe_data(recipe.data)
        yield from model_checks.check_data(recipe.model, facts)
        yield from check_loss(recipe.training, facts.target)


RULES: tuple[Callable[[PublicRecipe], Iterator[Finding]], ...] = (
    check_access,
    lambda recipe: check_column(recipe.data),
    check_unused_keys,
    check_training,
    check_data_files,
    check_data_and_model,
)
