"""Checks across the blocks of a recipe without privacy: records are declared public, and the model can be trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dprecipe.contract.table import list_kinds
from dprecipe.data import checks as data_checks
from dprecipe.data.facts import describe_data
from dprecipe.data.paid.schema import PaidStep
from dprecipe.faults import Finding
from dprecipe.language.words import join_with_or
from dprecipe.models import checks as model_checks
from dprecipe.models.schema import Trees
from dprecipe.planning.labels import check_loss
from dprecipe.planning.learning import check_length
from dprecipe.planning.paths import check_data_files
from dprecipe.planning.split import check_column
from dprecipe.recipe.root import PublicRecipe


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
